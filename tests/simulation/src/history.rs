//! What happened, readable.

/// Lines of a run; kept only when somebody wants to read them.
#[derive(Debug, Default)]
pub struct History {
    wanted: bool,
    lines: Vec<String>,
}

impl History {
    pub fn new(wanted: bool) -> Self {
        History { wanted, lines: Vec::new() }
    }

    pub fn wanted(&self) -> bool {
        self.wanted
    }

    pub fn note(&mut self, now: u64, line: impl FnOnce() -> String) {
        if self.wanted {
            self.lines.push(format!("{:>6}.{:03} ms  {}", now / 1000, now % 1000, line()));
        }
    }

    pub fn lines(&self) -> &[String] {
        &self.lines
    }
}
