//! The directory's name.

/// Name of the directory within the job's.
pub const NAME: &str = "ckpt";
