//! Paths as their bytes, for `#[serde(with = "path")]`: serde's own form refuses those that are not UTF-8.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_os_str().as_bytes().serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    Ok(PathBuf::from(OsString::from_vec(Vec::deserialize(deserializer)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Message {
        #[serde(with = "super")]
        path: PathBuf,
    }

    #[test]
    fn any_path_travels() {
        for bytes in [&b"/a/b"[..], b"/not\xff\xfeutf8", b"/new\nline", b""] {
            let sent = Message { path: PathBuf::from(OsString::from_vec(bytes.to_vec())) };
            let frame = crate::encode(&sent, 0).unwrap();
            assert_eq!(crate::decode::<Message>(&frame[crate::FRAME_HEADER..]).unwrap(), sent);
        }
    }
}
