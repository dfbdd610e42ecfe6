//! Names the shared library as it is installed, so that programs find it by its interface's number.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libftd_client.so.0");
}
