//! Setting files aside, and saying so.

use std::io;
use std::path::{Path, PathBuf};

/// So many files are named one by one.
const MOST_NAMED: usize = 8;

/// A file, or a directory that nobody may look into, which is not known to be whole.
#[derive(Debug)]
pub struct Torn {
    /// Where it is.
    pub path: PathBuf,
    /// Why, for people.
    pub why: String,
}

/// Moves them from `root` to `aside`, where they lie until the next time. Returns what is to be said.
pub fn move_out(root: &Path, aside: &Path, torn: &[Torn]) -> Vec<String> {
    if torn.is_empty() {
        return Vec::new();
    }
    // They are in memory, and as large as the program's state: only the last failure's are kept.
    if let Err(error) = std::fs::remove_dir_all(aside)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %aside.display(), %error, "older files that were set aside stay");
    }
    let mut notices = Vec::new();
    for Torn { path, why } in torn {
        let name = path.strip_prefix(root).unwrap_or(path);
        let target = aside.join(name);
        let moved =
            target.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::rename(path, &target));
        match moved {
            Ok(()) if notices.len() < MOST_NAMED => {
                notices.push(format!("{} in $FT_CHECKPOINT_DIR is set aside: {why}", one_line(name)));
            }
            Ok(()) => {}
            Err(error) => {
                let gone = std::fs::remove_file(path);
                let end = if gone.is_ok() { "removed" } else { "still there, and may be torn" };
                notices.push(format!(
                    "{} in $FT_CHECKPOINT_DIR cannot be set aside ({error}): it is {end}",
                    one_line(name)
                ));
            }
        }
    }
    if torn.len() > MOST_NAMED {
        notices.push(format!("… and {} more", torn.len() - MOST_NAMED));
    }
    notices.push(format!("what is set aside lies in {} until the next failure or the end of the job", one_line(aside)));
    notices
}

/// A path for people: one line, whatever it holds.
fn one_line(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_files_are_few_lines() {
        let job = tempfile::tempdir().unwrap();
        let (root, aside) = (job.path().join("ckpt"), job.path().join("ckpt.aside"));
        let set_aside = |names: &[&str]| {
            std::fs::create_dir_all(root.join("sub")).unwrap();
            let torn: Vec<Torn> =
                names.iter().map(|name| Torn { path: root.join(name), why: "so".to_string() }).collect();
            for each in &torn {
                std::fs::write(&each.path, "x").unwrap();
            }
            move_out(&root, &aside, &torn)
        };
        assert_eq!(set_aside(&[]).len(), 0);
        let said = set_aside(&["sub/a\nb"]);
        assert_eq!(said[0], "sub/a\\nb in $FT_CHECKPOINT_DIR is set aside: so");
        assert!(aside.join("sub/a\nb").exists() && said[1].contains("ckpt.aside"), "{said:?}");
        let said = set_aside(&["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]);
        assert_eq!(said.len(), MOST_NAMED + 2);
        assert_eq!(said[MOST_NAMED], "… and 2 more");
        assert!(!aside.join("sub").exists(), "the last failure's are gone");
    }
}
