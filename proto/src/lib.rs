//! Messages that outlive a process: what agents write into the store. Generated from the `.proto` files beside this
//! crate, which document the fields.

/// Version 1 of the schema.
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/ftd.v1.rs"));

    /// The `format` that this release writes and reads: 2 has slots and nodes run-length.
    pub const FORMAT: u32 = 2;
}
