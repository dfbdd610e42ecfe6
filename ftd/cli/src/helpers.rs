//! Where ftd's other programs are.

use std::path::{Path, PathBuf};

/// A part of ftd that is not where it should be.
#[derive(Debug, thiserror::Error)]
#[error("{name} is missing; looked for in {}{}", places.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "), if *told { " (FT_LIBEXEC)" } else { "" })]
pub struct Missing {
    name: &'static str,
    places: Vec<PathBuf>,
    /// The variable names the only place.
    told: bool,
}

impl Missing {
    /// Whether `FT_LIBEXEC` is set to another place.
    pub fn is_told(&self) -> bool {
        self.told
    }
}

/// Absolute paths of ftd's other programs.
#[derive(Debug, Clone)]
pub struct Helpers {
    /// `ft-agent`.
    pub agent: PathBuf,
    /// `ft-shepherd`.
    pub shepherd: PathBuf,
    /// `ft-pmix`.
    pub pmix: PathBuf,
    /// `ft-ship`. It needs libfabric; without it there are no copies of checkpoints on other nodes, and no more than that is missing.
    pub ship: PathBuf,
    /// `libft_preload.so`.
    pub preload: PathBuf,
}

impl Helpers {
    /// Looks in `FT_LIBEXEC`, or else around the file of this program.
    ///
    /// # Errors
    /// Names what is missing and where it was looked for.
    pub fn find() -> Result<Helpers, Missing> {
        let exe = std::env::current_exe().unwrap_or_default();
        let told = std::env::var_os("FT_LIBEXEC").map(PathBuf::from).filter(|path| !path.as_os_str().is_empty());
        Self::find_in(&places(told.clone(), &exe), told.is_some())
    }

    /// Whether they are of this build.
    ///
    /// # Errors
    /// Names the one that is not.
    pub fn check(&self) -> Result<(), ft_sys::build_check::BuildError> {
        [&self.agent, &self.shepherd, &self.pmix, &self.preload]
            .into_iter()
            .try_for_each(|file| ft_sys::build_check::check(file))
    }

    fn find_in(places: &[PathBuf], told: bool) -> Result<Helpers, Missing> {
        let find = |name| {
            let found = places.iter().map(|place| place.join(name)).find(|file| file.is_file());
            found.ok_or_else(|| Missing { name, places: places.to_vec(), told })
        };
        let (agent, shepherd) = (find("ft-agent")?, find("ft-shepherd")?);
        let ship = find("ft-ship").unwrap_or_else(|_| agent.with_file_name("ft-ship"));
        Ok(Helpers { agent, shepherd, pmix: find("ft-pmix")?, ship, preload: find("libft_preload.so")? })
    }
}

fn places(libexec: Option<PathBuf>, exe: &Path) -> Vec<PathBuf> {
    if let Some(libexec) = libexec {
        return vec![std::path::absolute(&libexec).unwrap_or(libexec)];
    }
    let beside = exe.parent().unwrap_or(Path::new("/"));
    let above = beside.parent().unwrap_or(Path::new("/"));
    vec![beside.to_path_buf(), above.join("libexec/ftd"), above.join("lib/ftd"), above.join("lib")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_is_found_and_a_gap_named() {
        let root = tempfile::tempdir().unwrap();
        let libexec = root.path().join("libexec/ftd");
        std::fs::create_dir_all(&libexec).unwrap();
        for name in ["ft-agent", "ft-shepherd", "ft-pmix"] {
            std::fs::write(libexec.join(name), "").unwrap();
        }
        let places = places(None, &root.path().join("bin/ftrun"));
        let sentence = Helpers::find_in(&places, false).unwrap_err().to_string();
        assert!(sentence.starts_with("libft_preload.so is missing") && sentence.contains("/libexec/ftd"), "{sentence}");
        std::fs::create_dir(root.path().join("lib")).unwrap();
        std::fs::write(root.path().join("lib/libft_preload.so"), "").unwrap();
        let helpers = Helpers::find_in(&places, false).unwrap();
        assert_eq!(helpers.agent, libexec.join("ft-agent"));
        assert_eq!(helpers.preload, root.path().join("lib/libft_preload.so"));
    }

    #[test]
    fn ft_libexec_is_the_only_place_when_it_is_set() {
        assert_eq!(places(Some("/opt/ftd".into()), Path::new("/usr/bin/ftrun")), [PathBuf::from("/opt/ftd")]);
        assert_eq!(places(None, Path::new("/usr/bin/ftrun")).len(), 4);
        let sentence = Helpers::find_in(&["/no/such".into()], true).unwrap_err().to_string();
        assert_eq!(sentence, "ft-agent is missing; looked for in /no/such (FT_LIBEXEC)");
    }
}
