//! Why a program that is there cannot be executed: what it is to be interpreted by is not.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The kernel reads so much of a script for its first line.
const FIRST_LINE: usize = 256;
/// An interpreter may be a script itself, so often.
const DEPTH: usize = 5;

/// What to say behind "cannot execute …", when the program is a script without its interpreter.
pub fn missing(program: &Path) -> Option<String> {
    let mut file = program.to_path_buf();
    for _ in 0..DEPTH {
        let interpreter = of(&file)?;
        let name = interpreter.as_os_str().as_bytes();
        let why = match std::fs::metadata(&interpreter) {
            Ok(_) if nix::unistd::access(&interpreter, nix::unistd::AccessFlags::X_OK).is_err() => {
                "may not be executed".to_string()
            }
            Ok(_) => {
                file = interpreter;
                continue;
            }
            Err(error) if name.ends_with(b"\r") => {
                format!("is not there ({error}): the file's lines end as in DOS")
            }
            Err(error) => format!("is not there ({error})"),
        };
        return Some(format!(
            "its interpreter '{}', which its first line names, {why}",
            interpreter.display().to_string().escape_debug()
        ));
    }
    None
}

/// The interpreter that the first line of a script names.
fn of(script: &Path) -> Option<PathBuf> {
    let mut line = Vec::new();
    File::open(script).ok()?.take(FIRST_LINE as u64).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    Some(PathBuf::from(OsStr::from_bytes(words.next()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_interpreter_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let script = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let said = missing(&script("a", "#! /no/such -x\n")).unwrap();
        assert!(said.starts_with("its interpreter '/no/such', which its first line names, is not there"), "{said}");
        let said = missing(&script("b", "#!/bin/sh\r\necho\r\n")).unwrap();
        assert!(said.contains("'/bin/sh\\r'") && said.ends_with("as in DOS"), "{said}");
        let plain = script("plain", "");
        let said = missing(&script("c", &format!("#!{}\n", plain.display()))).unwrap();
        assert!(said.ends_with("may not be executed"), "{said}");
        assert_eq!(missing(&script("d", "#!/bin/sh\n")), None);
        assert_eq!(missing(&plain), None);
    }
}
