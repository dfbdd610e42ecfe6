//! Names that ranks publish for `MPI_Lookup_name`. One directory serves a whole job, so the world only passes requests on.

use std::collections::BTreeMap;

/// What a rank wants with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameRequest {
    /// Publish a service.
    Publish {
        /// Name of the service.
        service: String,
        /// The port that it is to be found at.
        port: String,
    },
    /// Find a service.
    Lookup {
        /// Name of the service.
        service: String,
    },
    /// Withdraw a service.
    Unpublish {
        /// Name of the service.
        service: String,
    },
}

/// The answer to a [`NameRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameAnswer {
    /// Published or withdrawn.
    Done,
    /// Found at this port.
    Found(String),
    /// Not done, for this reason.
    Refused(&'static str),
}

impl NameRequest {
    pub(crate) fn reply(&self, answer: &NameAnswer) -> String {
        let command = match self {
            NameRequest::Publish { .. } => "publish_result",
            NameRequest::Lookup { .. } => "lookup_result",
            NameRequest::Unpublish { .. } => "unpublish_result",
        };
        // MPICH up to 3 looks at `info`, later ones at `rc`.
        match answer {
            NameAnswer::Done => format!("cmd={command} info=ok rc=0 msg=success"),
            NameAnswer::Found(port) => format!("cmd={command} info=ok rc=0 msg=success port={port}"),
            NameAnswer::Refused(reason) => {
                let word = reason.replace(char::is_whitespace, "_");
                format!("cmd={command} info={word} rc=1 msg={word}")
            }
        }
    }
}

/// Most names that are published at a time; each takes 8 KiB at the most.
const MOST: usize = 4096;

/// A directory of names in one process.
#[derive(Debug, Default)]
pub struct Names(BTreeMap<String, String>);

impl Names {
    /// Does what `request` wants.
    pub fn handle(&mut self, request: &NameRequest) -> NameAnswer {
        match request {
            NameRequest::Publish { service, .. } if self.0.len() >= MOST && !self.0.contains_key(service) => {
                NameAnswer::Refused("too many names are published")
            }
            NameRequest::Publish { service, port } => match self.0.entry(service.clone()) {
                std::collections::btree_map::Entry::Occupied(_) => NameAnswer::Refused("name is already published"),
                std::collections::btree_map::Entry::Vacant(free) => {
                    free.insert(port.clone());
                    NameAnswer::Done
                }
            },
            NameRequest::Lookup { service } => match self.0.get(service) {
                Some(port) => NameAnswer::Found(port.clone()),
                None => NameAnswer::Refused("name is not published"),
            },
            NameRequest::Unpublish { service } => match self.0.remove(service) {
                Some(_) => NameAnswer::Done,
                None => NameAnswer::Refused("name is not published"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_and_comes_back() {
        let mut names = Names::default();
        let publish = |number: usize| NameRequest::Publish { service: number.to_string(), port: "port".into() };
        let full = NameAnswer::Refused("too many names are published");
        let published = (0..10_000).take_while(|number| names.handle(&publish(*number)) == NameAnswer::Done).count();
        assert_eq!(published, 4096);
        assert_eq!(names.handle(&publish(published)), full);
        assert_ne!(names.handle(&publish(0)), full, "that one is there");
        assert_eq!(names.handle(&NameRequest::Unpublish { service: "0".into() }), NameAnswer::Done);
        assert_eq!(names.handle(&publish(published)), NameAnswer::Done);
        assert_eq!(names.handle(&publish(0)), full);
    }
}
