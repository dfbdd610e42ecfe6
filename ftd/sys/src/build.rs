//! Which release a program of ftd's is of, and which protocol it speaks. Programs whose numbers are no neighbours do not understand each
//! other: so it stands in a note in their files, which can be read before one of them is started.

/// Owner and type of the note.
pub const OWNER: &[u8] = b"ftd";
/// See [`OWNER`].
pub const KIND: u32 = 1;
/// Room for the text.
const TEXT: usize = 48;

#[repr(C, align(4))]
struct Note {
    owner_bytes: u32,
    text_bytes: u32,
    kind: u32,
    owner: [u8; 4],
    text: [u8; TEXT],
}

// SAFETY: the loader maps what stands in such a section and does nothing with it; the layout is that of an ELF note.
#[unsafe(link_section = ".note.ftd")]
#[used]
static NOTE: Note = Note { owner_bytes: 4, text_bytes: TEXT as u32, kind: KIND, owner: *b"ftd\0", text: text() };

/// `0.1.0 (ftd speaks protocol 00000007)`, and zeros.
const fn text() -> [u8; TEXT] {
    let mut text = [0; TEXT];
    let parts = [env!("CARGO_PKG_VERSION").as_bytes(), b" (", &ft_wire::speaks(), b")"];
    let (mut part, mut at) = (0, 0);
    while part < parts.len() {
        let mut i = 0;
        while i < parts[part].len() {
            text[at] = parts[part][i];
            at += 1;
            i += 1;
        }
        part += 1;
    }
    text
}

/// A program that names this in a `#[used]` static has the note in its file.
pub fn keep() {
    std::hint::black_box(&NOTE);
}

/// What a note says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// In words: `0.1.0 (protocol 7)`.
    pub words: String,
    /// The protocol's number; nothing if it says none.
    pub protocol: Option<u32>,
}

impl Release {
    /// As a note's text has it.
    pub fn of(text: &[u8]) -> Release {
        let protocol = ft_wire::spoken(text);
        let said = String::from_utf8_lossy(text).trim_end_matches('\0').to_string();
        let words = match (protocol, said.split_once(" (")) {
            (Some(number), Some((release, _))) => format!("{release} (protocol {number})"),
            _ => said,
        };
        Release { words, protocol }
    }

    /// This program's.
    pub fn own() -> Release {
        Release::of(std::hint::black_box(&NOTE.text))
    }
}

/// The text of this program's note.
pub fn noted() -> String {
    String::from_utf8_lossy(std::hint::black_box(&NOTE.text)).trim_end_matches('\0').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_named_by_version_and_protocol() {
        let (version, protocol) = (env!("CARGO_PKG_VERSION"), ft_wire::VERSION);
        assert_eq!(noted(), format!("{version} (ftd speaks protocol {protocol:08})"));
        let words = format!("{version} (protocol {protocol})");
        assert_eq!(Release::own(), Release { words, protocol: Some(protocol) });
        assert_eq!(
            Release::of(b"0.1.0 (messages 0123abcd)\0"),
            Release { words: "0.1.0 (messages 0123abcd)".into(), protocol: None }
        );
    }
}
