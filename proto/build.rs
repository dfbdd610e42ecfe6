fn main() {
    println!("cargo:rerun-if-changed=ftd");
    if let Err(error) =
        prost_build::compile_protos(&["ftd/v1/epoch.proto", "ftd/v1/node.proto", "ftd/v1/peer.proto"], &["."])
    {
        eprintln!("{error}\nprotoc is in Debian's package protobuf-compiler");
        std::process::exit(1);
    }
}
