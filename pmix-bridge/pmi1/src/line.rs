//! Cutting bytes into lines, and lines into fields.

use crate::{MAX_LINE, ProtocolError};

/// Collects bytes until a newline comes.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// The lines that `bytes` completes, without their newlines; empty ones are left out. After an error nothing follows.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<Result<String, ProtocolError>> {
        let mut lines = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.pending.len() + part.len() > MAX_LINE {
                self.pending = Vec::new();
                lines.push(Err(ProtocolError::LineTooLong));
                return lines;
            }
            self.pending.extend_from_slice(part);
            if self.pending.last() != Some(&b'\n') {
                break;
            }
            self.pending.pop();
            match String::from_utf8(std::mem::take(&mut self.pending)) {
                Ok(line) if line.contains('\0') => {
                    lines.push(Err(ProtocolError::NotText));
                    return lines;
                }
                Ok(line) if line.trim().is_empty() => {}
                Ok(line) => lines.push(Ok(line)),
                Err(_) => {
                    lines.push(Err(ProtocolError::NotText));
                    return lines;
                }
            }
        }
        lines
    }
}

/// Fields whose value runs to the end of the line: it may hold blanks, and the clients send it last.
const TO_THE_END: [&str; 3] = ["value", "port", "message"];

/// `name=value` pairs, divided by blanks.
#[derive(Debug)]
pub(crate) struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    pub(crate) fn parse(line: &'a str) -> Self {
        let mut fields = Vec::new();
        let mut rest = line.trim_start();
        while let Some((name, after)) = rest.split_once('=') {
            // Words without an equal sign may stand before a name: they belong to nothing.
            let name = name.rsplit(char::is_whitespace).next().unwrap_or(name);
            if TO_THE_END.contains(&name) {
                fields.push((name, after.trim_end()));
                break;
            }
            let end = after.find(char::is_whitespace).unwrap_or(after.len());
            fields.push((name, &after[..end]));
            rest = after[end..].trim_start();
        }
        Fields(fields)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(n, _)| *n == name).map(|(_, value)| *value)
    }

    /// The command: the value of `cmd` or `mcmd`, whichever stands first in the line.
    pub(crate) fn command(&self) -> Option<&'a str> {
        self.0.first().filter(|(name, _)| matches!(*name, "cmd" | "mcmd")).map(|(_, command)| *command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_blanks_and_equal_signs() {
        let fields = Fields::parse("cmd=put kvsname=x key=a=b  value=1 2=3 \r");
        assert_eq!(fields.command(), Some("put"));
        assert_eq!(fields.get("key"), Some("a=b"));
        assert_eq!(fields.get("value"), Some("1 2=3"));
    }

    #[test]
    fn a_line_without_end_is_refused_before_it_fills_memory() {
        let mut lines = Lines::default();
        let part = vec![b'x'; 4096];
        let refused = (0..17).flat_map(|_| lines.push(&part)).collect::<Vec<_>>();
        assert_eq!(refused, vec![Err(ProtocolError::LineTooLong)]);
        assert!(lines.pending.len() < 8192);
    }
}
