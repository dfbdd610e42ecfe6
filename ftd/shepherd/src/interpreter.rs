//! Why a program that is there cannot be executed: what it is to be interpreted by is not.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The kernel reads so much of a script for its first line.
const FIRST_LINE: usize = 256;
/// So much of a program is read for its loader, which stands in front of all else.
const HEADERS: usize = 8192;
/// `PT_INTERP`: the segment that names it.
const INTERPRETER: usize = 3;
/// An interpreter may be a script itself, so often.
const DEPTH: usize = 5;

/// What to say behind "cannot execute …", when the program is there, and what it is to be interpreted or loaded by is not.
pub fn missing(program: &Path) -> Option<String> {
    if let Some(loader) = loader(program)
        && let Err(error) = std::fs::metadata(&loader)
    {
        let shown = loader.display().to_string();
        return Some(format!(
            "its program loader '{}' is not there ({error}): it was built for another system",
            shown.escape_debug()
        ));
    }
    let mut file = program.to_path_buf();
    for _ in 0..DEPTH {
        let interpreter = of(&file)?;
        let name = interpreter.as_os_str().as_bytes();
        let why = match std::fs::metadata(&interpreter) {
            // Opening what is no file may take for ever.
            Ok(found) if !found.is_file() => "is no file".to_string(),
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

/// The loader that a program asks for. (Where it stands anywhere but at the beginning of the file, nobody says.)
fn loader(program: &Path) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    File::open(program).ok()?.take(HEADERS as u64).read_to_end(&mut bytes).ok()?;
    let number = |at: usize, size: usize| {
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(bytes.get(at..at.checked_add(size)?)?);
        usize::try_from(u64::from_le_bytes(wide)).ok()
    };
    let is_wide = match bytes.get(..5)? {
        [0x7f, b'E', b'L', b'F', class] => *class == 2,
        _ => return None,
    };
    // Where the segments are described, in the file's header; and what is where, in each description.
    let (table, each, count) = if is_wide { ((32, 8), 54, 56) } else { ((28, 4), 42, 44) };
    let (offset, length, size) = if is_wide { (8, 32, 8) } else { (4, 16, 4) };
    let (table, each, count) = (number(table.0, table.1)?, number(each, 2)?, number(count, 2)?);
    let mut segments = (0..count).filter_map(|nth| table.checked_add(nth * each));
    let segment = segments.find(|at| number(*at, 4) == Some(INTERPRETER))?;
    let (from, length) = (number(segment.checked_add(offset)?, size)?, number(segment.checked_add(length)?, size)?);
    let name = bytes.get(from..from.checked_add(length)?)?.split(|byte| *byte == 0).next()?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
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
    fn a_missing_loader_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let mut bytes = std::fs::read("/bin/true").unwrap();
        let found = loader(Path::new("/bin/true")).unwrap();
        assert_eq!(missing(Path::new("/bin/true")), None);
        let name = found.as_os_str().as_bytes();
        let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
        bytes[at + 1] = b'_';
        let other = directory.path().join("other");
        std::fs::write(&other, &bytes).unwrap();
        let said = missing(&other).unwrap();
        assert!(said.starts_with("its program loader '/_") && said.contains("is not there"), "{said}");
        // Every byte of the headers in turn, and every length.
        for at in 0..1200 {
            let mut broken = bytes[..4096].to_vec();
            broken[at] ^= 0xff;
            std::fs::write(&other, &broken).unwrap();
            let _ = missing(&other);
            std::fs::write(&other, &bytes[..at]).unwrap();
            let _ = missing(&other);
        }
    }

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
        let said = missing(&script("e", "#!/dev/null\n")).unwrap();
        assert!(said.ends_with("is no file"), "{said}");
        let said = missing(&script("c", &format!("#!{}\n", plain.display()))).unwrap();
        assert!(said.ends_with("may not be executed"), "{said}");
        assert_eq!(missing(&script("d", "#!/bin/sh\n")), None);
        assert_eq!(missing(&plain), None);
    }
}
