//! Binds the installed headers of libfabric (1.14 or later). Most of its calls are static inline functions: a small C file, made
//! and compiled here, gives them symbols.

use std::path::{Path, PathBuf};
use std::{env, fs};

const ADVICE: &str = "install the package libfabric-dev (Debian, Ubuntu) or libfabric-devel (Fedora, RHEL), or set \
                      FT_FABRIC_INCLUDE to the folder that holds rdma/fabric.h and, if need be, FT_FABRIC_LIB to the one that \
                      holds libfabric.so";

const HEADERS: [&str; 7] = ["fabric.h", "fi_cm.h", "fi_domain.h", "fi_endpoint.h", "fi_eq.h", "fi_errno.h", "fi_rma.h"];

const FUNCTIONS: &str = "fi_(version|getinfo|freeinfo|dupinfo|fabric|strerror|close|domain|mr_reg|mr_desc|mr_key|mr_bind|mr_enable|\
                         endpoint|ep_bind|enable|getname|av_open|av_insert|cq_open|cq_read|cq_readerr|control|trywait|\
                         readmsg|writemsg)";

fn main() {
    println!("cargo::rerun-if-env-changed=FT_FABRIC_INCLUDE");
    println!("cargo::rerun-if-env-changed=FT_FABRIC_LIB");
    println!("cargo::rerun-if-changed=build.rs");

    let (include, tried) = find_headers();
    let Some(include) = include else {
        fail(&format!("rdma/fabric.h was not found in {}: {ADVICE}", list(&tried)));
    };
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else { fail("cargo did not set OUT_DIR") };
    bind(&include, &out);

    let library = env::var_os("FT_FABRIC_LIB").map(PathBuf::from).or_else(|| {
        let sibling = include.parent()?.join("lib");
        sibling.join("libfabric.so").exists().then_some(sibling)
    });
    if let Some(library) = library {
        if !library.join("libfabric.so").exists() {
            fail(&format!("there is no libfabric.so in {}: {ADVICE}", library.display()));
        }
        println!("cargo::rustc-link-search=native={}", library.display());
    }
    // After the C file that calls it.
    println!("cargo::rustc-link-lib=dylib=fabric");
}

fn bind(include: &Path, out: &Path) {
    let header = out.join("all.h");
    let includes: String = HEADERS.iter().map(|name| format!("#include <rdma/{name}>\n")).collect();
    if let Err(error) = fs::write(&header, includes) {
        fail(&format!("{} could not be written: {error}", header.display()));
    }
    for name in HEADERS {
        println!("cargo::rerun-if-changed={}", include.join("rdma").join(name).display());
    }
    let calls = out.join("calls");
    let bindings = bindgen::Builder::default()
        .header(header.to_string_lossy())
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_function(FUNCTIONS)
        .allowlist_type("fi_(info|context2|cq_attr|cq_entry|cq_err_entry|av_attr|msg_rma|rma_iov)")
        .allowlist_var("FI_.*")
        .wrap_static_fns(true)
        .wrap_static_fns_path(&calls)
        .derive_debug(false)
        .layout_tests(false)
        .prepend_enum_name(false)
        .generate_comments(false)
        // rustfmt need not be there.
        .formatter(bindgen::Formatter::None)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .generate();
    let bindings = match bindings {
        Ok(bindings) => bindings,
        Err(error) => fail(&format!("the headers of libfabric could not be bound: {error}")),
    };
    if let Err(error) = bindings.write_to_file(out.join("bindings.rs")) {
        fail(&format!("the bindings could not be written: {error}"));
    }
    cc::Build::new().file(calls.with_extension("c")).include(include).warnings(false).compile("ft_ship_calls");
}

/// The first folder that holds `rdma/fabric.h`, and all that were looked into.
fn find_headers() -> (Option<PathBuf>, Vec<PathBuf>) {
    let folders = match env::var_os("FT_FABRIC_INCLUDE") {
        Some(folder) => vec![PathBuf::from(folder)],
        None => ["/usr/include", "/usr/local/include", "/opt/libfabric/include"].map(PathBuf::from).to_vec(),
    };
    (folders.iter().find(|folder| folder.join("rdma/fabric.h").exists()).cloned(), folders)
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn fail(sentence: &str) -> ! {
    eprintln!("error: {sentence}");
    std::process::exit(1)
}
