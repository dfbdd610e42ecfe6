//! Binds the installed PMIx server headers (4.2 or later).

use std::path::{Path, PathBuf};
use std::{env, fs};

const ADVICE: &str = "install the package libpmix-dev (Debian, Ubuntu) or pmix-devel (Fedora, RHEL), or set FT_PMIX_INCLUDE \
                      to the folder that holds pmix_server.h and, if need be, FT_PMIX_LIB to the one that holds libpmix.so";

fn main() {
    println!("cargo::rerun-if-env-changed=FT_PMIX_INCLUDE");
    println!("cargo::rerun-if-env-changed=FT_PMIX_LIB");
    println!("cargo::rerun-if-changed=build.rs");

    let (include, tried) = find_headers();
    let Some(include) = include else {
        fail(&format!("pmix_server.h was not found in {}: {ADVICE}", list(&tried)));
    };
    let library = env::var_os("FT_PMIX_LIB").map(PathBuf::from).or_else(|| {
        let sibling = include.parent()?.join("lib");
        sibling.join("libpmix.so").exists().then_some(sibling)
    });
    if let Some(library) = library {
        if !library.join("libpmix.so").exists() {
            fail(&format!("there is no libpmix.so in {}: {ADVICE}", library.display()));
        }
        println!("cargo::rustc-link-search=native={}", library.display());
    }
    println!("cargo::rustc-link-lib=dylib=pmix");

    let header = include.join("pmix_server.h");
    println!("cargo::rerun-if-changed={}", header.display());
    let bindings = bindgen::Builder::default()
        .header(include.join("pmix.h").to_string_lossy())
        .header(header.to_string_lossy())
        .clang_arg(format!("-I{}", include.display()))
        .allowlist_function(
            "PMIx_(server_init|server_register_nspace|server_register_client|server_setup_fork|server_dmodex_request|\
             generate_regex|generate_ppn|Register_event_handler|Notify_event|Info_load|Value_destruct|Data_pack|Data_unpack|Data_load|\
             Data_unload|Error_string|Get_version)",
        )
        .allowlist_type("pmix_(server_module|info|pdata|proc|value|data_array|data_buffer|byte_object|status)_t")
        .allowlist_var("PMIX_.*")
        .generate_cstr(true)
        .derive_default(false)
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
        Err(error) => fail(&format!("{} could not be bound: {error}", header.display())),
    };
    let Some(out) = env::var_os("OUT_DIR") else { fail("cargo did not set OUT_DIR") };
    if let Err(error) = bindings.write_to_file(Path::new(&out).join("bindings.rs")) {
        fail(&format!("the bindings could not be written: {error}"));
    }
}

/// The first folder that holds `pmix_server.h`, and all that were looked into.
fn find_headers() -> (Option<PathBuf>, Vec<PathBuf>) {
    let mut folders = Vec::new();
    if let Some(folder) = env::var_os("FT_PMIX_INCLUDE") {
        folders.push(PathBuf::from(folder));
    } else {
        // Debian keeps PMIx below the multiarch folder: /usr/lib/x86_64-linux-gnu/pmix2/include.
        let multiarch = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
        let mut multiarch: Vec<_> = multiarch.map(|path| path.join("pmix2/include")).filter(|p| p.exists()).collect();
        multiarch.sort();
        folders.extend(multiarch);
        folders.extend(["/usr/include", "/usr/local/include", "/opt/pmix/include"].map(PathBuf::from));
    }
    (folders.iter().find(|folder| folder.join("pmix_server.h").exists()).cloned(), folders)
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn fail(sentence: &str) -> ! {
    eprintln!("error: {sentence}");
    std::process::exit(1)
}
