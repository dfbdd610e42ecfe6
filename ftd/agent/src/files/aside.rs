//! Setting files aside, and saying so.

use ft_sys::beneath::{Beneath, path_of};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// So many files are named one by one.
const MOST_NAMED: usize = 8;

/// A file, or a directory that nobody may look into, which is not known to be whole.
#[derive(Debug)]
pub struct Torn {
    /// Where it is.
    pub path: PathBuf,
    /// Why, for people.
    pub why: String,
    /// Something else has taken its place already.
    pub instead: Option<Instead>,
}

/// The whole one that was there before, and is again.
#[derive(Debug)]
pub struct Instead {
    /// Where what is torn lies since.
    pub lies: PathBuf,
    /// How much older it is, if that is known.
    pub earlier: Option<Duration>,
}

impl Torn {
    /// One in whose place there is nothing else.
    pub fn new(path: PathBuf, why: String) -> Torn {
        Torn { path, why, instead: None }
    }
}

/// Moves them from `root` to `aside`, which is [`empty`]. Returns what is to be said.
///
/// # Errors
/// When a file that may be torn can neither be moved nor removed, nor any directory above it be moved: it would be served.
pub fn move_out(beneath: &Beneath, root: &Path, aside: &Path, torn: &[Torn]) -> Result<Vec<String>, String> {
    if torn.is_empty() {
        return Ok(Vec::new());
    }
    let room = Room { beneath, root, aside };
    let mut notices = Vec::new();
    let mut named = 0;
    for each @ Torn { path, why, instead } in torn {
        match room.move_one(path, instead.as_ref().map_or(path, |instead| &instead.lies)) {
            Ok(()) if named < MOST_NAMED => {
                named += 1;
                let name = one_line(path.strip_prefix(root).unwrap_or(path));
                let instead = instead.as_ref().map_or(String::new(), said_instead);
                notices.push(format!("{name} in $FT_CHECKPOINT_DIR is set aside: {why}{instead}"));
            }
            Ok(()) => {}
            // It is served by nobody where it lies.
            Err(error) if let Some(Instead { lies, .. }) = instead => {
                tracing::warn!(path = %lies.display(), %error, "what was torn is removed");
                let _ = beneath.spot(lies).and_then(|spot| ft_sys::job_dir::remove_tree(&spot.path()));
            }
            // It went with what another one stands in.
            Err(_) if beneath.handle(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) => {}
            Err(error) => notices.push(room.by_force(each, &error)?),
        }
    }
    if torn.len() > MOST_NAMED {
        let back = torn.iter().filter(|torn| torn.instead.is_some()).count();
        let back = if back > 0 {
            format!("; {back} of all have the whole ones before them in their places")
        } else {
            String::new()
        };
        notices.push(format!("… and {} more{back}", torn.len() - MOST_NAMED));
    }
    if beneath.directory(aside).is_ok() {
        let aside = one_line(aside);
        notices.push(format!("what is set aside lies in {aside} until the next failure or the end of the job"));
    }
    Ok(notices)
}

/// What is there is in memory, and as large as the program's state: only the last failure's is kept.
pub fn empty(beneath: &Beneath, aside: &Path) {
    let removed = beneath.spot(aside).and_then(|spot| ft_sys::job_dir::remove_tree(&spot.path()));
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        let moved = unused(beneath, aside).and_then(|old| rename(beneath, aside, &old));
        tracing::warn!(path = %aside.display(), %error, ?moved, "older files that were set aside stay");
    }
}

/// What stands in the place of the directory is moved. Returns where it lies.
///
/// # Errors
/// When it cannot be.
pub fn move_root(beneath: &Beneath, root: &Path, aside: &Path) -> io::Result<PathBuf> {
    beneath.make_directories(aside)?;
    let lies = aside.join(root.file_name().unwrap_or_default());
    rename(beneath, root, &lies)?;
    Ok(lies)
}

fn rename(beneath: &Beneath, from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(beneath.spot(from)?.path(), beneath.spot(to)?.path())
}

fn said_instead(Instead { earlier, .. }: &Instead) -> String {
    let written = earlier.map_or(String::new(), |earlier| format!(", written {:.3} s before,", earlier.as_secs_f64()));
    format!("; the whole one before it{written} is in its place")
}

/// From where to where.
struct Room<'a> {
    beneath: &'a Beneath,
    root: &'a Path,
    aside: &'a Path,
}

impl Room<'_> {
    /// `lies` is where it is by now.
    fn move_one(&self, path: &Path, lies: &Path) -> io::Result<()> {
        let target = self.aside.join(path.strip_prefix(self.root).unwrap_or(path));
        target.parent().map_or(Ok(()), |parent| self.beneath.make_directories(parent))?;
        rename(self.beneath, lies, &target)
    }

    /// The file cannot be moved: it is removed, or something that it stands in is moved. Returns what is to be said.
    fn by_force(&self, Torn { path, why, .. }: &Torn, error: &io::Error) -> Result<String, String> {
        let root = self.root;
        let name = one_line(path.strip_prefix(root).unwrap_or(path));
        if self.beneath.spot(path).and_then(|spot| std::fs::remove_file(spot.path())).is_ok() {
            return Ok(format!("{name} in $FT_CHECKPOINT_DIR is removed, for it cannot be set aside ({error}): {why}"));
        }
        let said = |moved: &Path| {
            let moved = one_line(moved.strip_prefix(root).unwrap_or(moved));
            format!(
                "{moved} in $FT_CHECKPOINT_DIR is set aside with all that is in it, for {name} cannot be taken out of it ({error}): {why}"
            )
        };
        let above = path.ancestors().skip(1).take_while(|above| *above != root);
        let mut top = path.as_path();
        for directory in above {
            if self.move_one(directory, directory).is_ok() {
                return Ok(said(directory));
            }
            top = directory;
        }
        match self.exchange(top) {
            Ok(old) => Ok(format!("{}; it lies in {}", said(top), one_line(&old))),
            Err(second) => Err(format!(
                "{name} in $FT_CHECKPOINT_DIR cannot be set aside ({error}; {second}), and the program would read it as a whole one: {why}"
            )),
        }
    }

    /// Puts a new directory in the place of the root, with all that was in it but `top`. Returns where the old one is.
    fn exchange(&self, top: &Path) -> io::Result<PathBuf> {
        let (beneath, root) = (self.beneath, self.root);
        let old = unused(beneath, &root.with_extension("stuck"))?;
        let permissions = beneath.directory(root)?.metadata()?.permissions();
        rename(beneath, root, &old)?;
        std::fs::create_dir(beneath.spot(root)?.path())?;
        let (from, to) = (beneath.directory(&old)?, beneath.directory(root)?);
        for entry in
            std::fs::read_dir(path_of(&from))?.flatten().filter(|entry| Some(&*entry.file_name()) != top.file_name())
        {
            if let Err(error) = std::fs::rename(entry.path(), path_of(&to).join(entry.file_name())) {
                tracing::warn!(path = %entry.path().display(), %error, "a part of $FT_CHECKPOINT_DIR is set aside as well");
            }
        }
        std::fs::set_permissions(path_of(&to), permissions)?;
        Ok(old)
    }
}

/// A name beside this one that nothing has.
fn unused(beneath: &Beneath, path: &Path) -> io::Result<PathBuf> {
    let numbered = |number: u32| {
        let mut name = path.as_os_str().to_os_string();
        name.push(format!(".{number}"));
        PathBuf::from(name)
    };
    let directory = beneath.spot(path)?;
    let free = |path: &PathBuf| {
        let beside = directory.path().with_file_name(path.file_name().unwrap_or_default());
        beside.symlink_metadata().is_err()
    };
    (1..).map(numbered).find(free).ok_or_else(|| io::Error::from(io::ErrorKind::AlreadyExists))
}

/// A path for people: one line, whatever it holds.
pub fn one_line(path: &Path) -> String {
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
            let torn: Vec<Torn> = names.iter().map(|name| Torn::new(root.join(name), "so".to_string())).collect();
            for each in &torn {
                std::fs::write(&each.path, "x").unwrap();
            }
            let beneath = Beneath::open(job.path()).unwrap();
            empty(&beneath, &aside);
            move_out(&beneath, &root, &aside, &torn).unwrap()
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
