//! What one line of a rank's asks for.

use crate::line::Fields;
use crate::{MAX_VALUE, NameRequest, ProtocolError};

/// A command with its fields.
#[derive(Debug)]
pub(crate) enum Request<'a> {
    /// Whether the rank speaks the version of the protocol that this server does.
    Init {
        known: bool,
    },
    Maxes,
    Appnum,
    KeySpaceName,
    UniverseSize,
    Put {
        key: &'a str,
        value: &'a str,
    },
    Get {
        key: &'a str,
    },
    GetByIndex {
        index: usize,
    },
    Barrier,
    Finalize,
    Abort {
        code: i32,
        message: &'a str,
    },
    Name(NameRequest),
    /// A block of it begins.
    Spawn,
}

/// A line's command as it was written, and what it asks for.
pub(crate) fn parse(line: &str) -> Result<(&str, Request<'_>), ProtocolError> {
    let fields = Fields::parse(line);
    let Some(command) = fields.command() else {
        return Err(ProtocolError::UnknownCommand(shorten(line)));
    };
    let without = |field: &'static str| ProtocolError::Field { command: command.to_string(), field };
    let field = |name: &'static str| fields.get(name).ok_or_else(|| without(name));
    let bounded = |name: &'static str| {
        let value = field(name)?;
        if value.is_empty() || value.len() >= MAX_VALUE { Err(without(name)) } else { Ok(value.to_string()) }
    };
    let request = match command {
        "init" => Request::Init { known: fields.get("pmi_version") == Some("1") },
        "get_maxes" => Request::Maxes,
        "get_appnum" => Request::Appnum,
        "get_my_kvsname" => Request::KeySpaceName,
        "get_universe_size" => Request::UniverseSize,
        "put" => Request::Put { key: field("key")?, value: field("value")? },
        "get" => Request::Get { key: field("key")? },
        "getbyidx" => Request::GetByIndex { index: field("idx")?.parse().map_err(|_| without("idx"))? },
        "barrier_in" => Request::Barrier,
        "finalize" => Request::Finalize,
        "abort" => Request::Abort {
            code: fields.get("exitcode").and_then(|code| code.parse().ok()).unwrap_or(1),
            message: fields.get("message").unwrap_or_default(),
        },
        "publish_name" => Request::Name(NameRequest::Publish { service: bounded("service")?, port: bounded("port")? }),
        "lookup_name" => Request::Name(NameRequest::Lookup { service: bounded("service")? }),
        "unpublish_name" => Request::Name(NameRequest::Unpublish { service: bounded("service")? }),
        "spawn" => Request::Spawn,
        _ => return Err(ProtocolError::UnknownCommand(shorten(line))),
    };
    Ok((command, request))
}

/// A line as it may stand in a message for people.
pub(crate) fn shorten(line: &str) -> String {
    line.chars().take(120).collect()
}
