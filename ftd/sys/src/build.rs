//! Which build a program of ftd's is of. Programs of two builds may not understand each other, and then nothing that they say
//! can be relied on: so it stands in a note in their files, which can be read before one of them is started.

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

/// `0.1.0 (messages 0123abcd)`, and zeros.
const fn text() -> [u8; TEXT] {
    let mut text = [0; TEXT];
    let parts = [env!("CARGO_PKG_VERSION").as_bytes(), b" (messages ", &hexadecimal(ft_wire::MESSAGES), b")"];
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

const fn hexadecimal(number: u32) -> [u8; 8] {
    let (mut digits, mut at) = ([0; 8], 0);
    while at < 8 {
        digits[at] = b"0123456789abcdef"[(number >> (28 - 4 * at)) as usize & 0xf];
        at += 1;
    }
    digits
}

/// A program that names this in a `#[used]` static has the note in its file.
pub fn keep() {
    std::hint::black_box(&NOTE);
}

/// The build of this program, in words.
pub fn own() -> String {
    words(&std::hint::black_box(&NOTE).text)
}

/// The words of a note's text.
pub fn words(text: &[u8]) -> String {
    String::from_utf8_lossy(text).trim_end_matches('\0').to_string()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_build_is_named_by_version_and_messages() {
        let expected = format!("{} (messages {:08x})", env!("CARGO_PKG_VERSION"), ft_wire::MESSAGES);
        assert_eq!(super::own(), expected);
    }
}
