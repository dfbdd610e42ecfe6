//! Messages that outlive a process or leave a node: what agents write into the store, and what they tell each other. Generated from the `.proto` files beside this
//! crate, which document the fields.

/// Version 1 of the schema.
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/ftd.v1.rs"));

    /// The `format` that this release writes and reads: 2 has slots and nodes run-length.
    pub const FORMAT: u32 = 2;
    /// The `format` of a [`Node`] that this release writes and reads.
    pub const NODE_FORMAT: u32 = 1;
}
