//! Names that ranks publish for `MPI_Lookup_name`. One directory serves a whole world, on all its nodes: it is the caller's.

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
