//! libfabric's providers as people name them: those over which copies may go, best first.

/// All that can be named.
pub const PROVIDERS: [&str; 6] = ["verbs", "cxi", "efa", "opx", "tcp", "shm"];
/// Those that are tried where none is named, best first. The last one that is missing has no way to another machine.
pub const BEST: [&str; 5] = ["verbs", "cxi", "efa", "opx", "tcp"];
/// What says that none is named.
pub const AUTO: &str = "auto";

/// Reads a list with commas between its names; `None`: none is named.
///
/// # Errors
/// A sentence that says what is meant.
pub fn read(text: &str) -> Result<Option<String>, String> {
    if text.trim() == AUTO {
        return Ok(None);
    }
    let names: Vec<&str> = text.split(',').map(str::trim).collect();
    for (at, name) in names.iter().enumerate() {
        if !PROVIDERS.contains(name) {
            return Err(format!(
                "\"{name}\" is none of the providers {}; the list looks like \"verbs,tcp\", or is \"{AUTO}\" alone",
                PROVIDERS.join(", ")
            ));
        }
        if names[..at].contains(name) {
            return Err(format!("{name} is named twice"));
        }
    }
    Ok(Some(names.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_names_of_providers_each_once() {
        assert_eq!(read("auto"), Ok(None));
        assert_eq!(read("tcp"), Ok(Some("tcp".into())));
        assert_eq!(read("verbs, tcp"), Ok(Some("verbs,tcp".into())));
        for (text, said) in [
            ("", "\"\" is none of the providers verbs, cxi, efa, opx, tcp, shm;"),
            ("verb,tcp", "\"verb\" is none of the providers"),
            ("tcp;ofi_rxm", "\"tcp;ofi_rxm\" is none of the providers"),
            ("auto,tcp", "\"auto\" is none of the providers"),
            ("tcp,", "\"\" is none of the providers"),
            ("tcp,shm,tcp", "tcp is named twice"),
        ] {
            let error = read(text).map_err(|error| error.starts_with(said));
            assert_eq!(error, Err(true), "{text}");
        }
    }
}
