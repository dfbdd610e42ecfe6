//! What an answer of etcd that is an error means.

use etcd_client::Error;
use std::error::Error as StdError;
use tonic::{Code, Status};

/// What it means for who asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// It was not looked at: it may be asked again, whatever it is.
    Unseen(String),
    /// It was not looked at, because who asks must say its password again.
    Token(String),
    /// It was looked at, and is not done, now or later.
    Refused(String),
    /// It was looked at, and what came of it is more than is read.
    TooLong(String),
    /// The lease is not there.
    NoLease,
    /// What became of it is not known.
    Nothing(String),
}

pub(super) fn of(error: &Error) -> Answer {
    match error {
        Error::GRpcStatus(status) => of_status(status),
        Error::LeaseKeepAliveError(_) => Answer::NoLease,
        Error::InvalidArgs(_) | Error::InvalidMetadataValue(_) => Answer::Refused(error.to_string()),
        _ => Answer::Nothing(reason(error)),
    }
}

fn of_status(status: &Status) -> Answer {
    let reason = hint(chain(status));
    let said = status.message();
    // Nothing was sent: there is no connection to send it on.
    if sources(status).any(|source| source.is::<tonic::ConnectError>()) {
        return Answer::Unseen(reason);
    }
    // Of one question, not of who was asked: nobody else is concerned.
    if status.code() == Code::OutOfRange && said.contains("message length too large") {
        return Answer::TooLong(format!("the answer is longer than {} MiB", super::MESSAGE >> 20));
    }
    if said.starts_with("grpc: received message larger than max") {
        return Answer::Refused(reason);
    }
    // The words of etcd itself, of whatever release; what has none is the transport's, and says nothing of what became of it.
    match said.strip_prefix("etcdserver: ") {
        None => Answer::Nothing(reason),
        Some("no leader" | "too many requests") => Answer::Unseen(reason),
        Some("invalid auth token" | "revision of auth store is old") => Answer::Token(reason),
        Some("requested lease not found") => Answer::NoLease,
        Some(_) => match status.code() {
            Code::Unauthenticated => Answer::Token(reason),
            Code::InvalidArgument | Code::PermissionDenied | Code::ResourceExhausted | Code::FailedPrecondition => {
                Answer::Refused(reason)
            }
            _ => Answer::Nothing(reason),
        },
    }
}

/// What went wrong, one line.
pub(super) fn reason(error: &Error) -> String {
    match error {
        Error::GRpcStatus(status) => hint(chain(status)),
        Error::TransportError(error) => hint(chain(error)),
        other => other.to_string(),
    }
}

/// A member that speaks TLS closes the connection of who does not. (So does one that dies.)
fn hint(sentence: String) -> String {
    let more = " (if the member speaks TLS, its endpoint has to begin with https://)";
    if sentence.ends_with("broken pipe") { sentence + more } else { sentence }
}

/// Whether the same will come of the same question: a certificate that does not fit, a password that is wrong.
pub(super) fn is_lasting(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => matches!(of_status(status), Answer::Refused(_)) || is_tls(status),
        Error::TransportError(error) => is_tls(error),
        _ => matches!(of(error), Answer::Refused(_)),
    }
}

/// rustls says what it does not like with this kind of error.
fn is_tls(error: &(dyn StdError + 'static)) -> bool {
    let invalid = |error: &std::io::Error| error.kind() == std::io::ErrorKind::InvalidData;
    sources(error).any(|source| source.downcast_ref().is_some_and(invalid))
}

fn sources<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// An error and all that it came from, as far as they say more than each other.
pub(super) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut said: Vec<String> = Vec::new();
    for source in sources(error) {
        let sentence = match source.downcast_ref::<Status>() {
            Some(status) => status.message().to_string(),
            None => source.to_string(),
        };
        if !sentence.is_empty() && !said.iter().any(|before| before.contains(&sentence)) {
            said.push(sentence);
        }
    }
    // "transport error" and the like are the least of it.
    let more = said.iter().any(|sentence| sentence != "transport error" && sentence != "tcp connect error");
    said.retain(|sentence| !more || (sentence != "transport error" && sentence != "tcp connect error"));
    said.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: Status) -> Answer {
        of(&Error::GRpcStatus(status))
    }

    #[test]
    fn only_what_etcd_itself_says_was_not_done_counts_as_not_done() {
        assert!(matches!(answer(Status::unavailable("etcdserver: no leader")), Answer::Unseen(_)));
        assert!(matches!(answer(Status::unauthenticated("etcdserver: invalid auth token")), Answer::Token(_)));
        assert!(matches!(answer(Status::permission_denied("etcdserver: permission denied")), Answer::Refused(_)));
        assert_eq!(answer(Status::not_found("etcdserver: requested lease not found")), Answer::NoLease);
        for status in [
            Status::unavailable("etcdserver: request timed out"),
            Status::unavailable("etcdserver: request timed out, possibly due to previous leader failure"),
            Status::unknown("raft proposal dropped"),
            Status::unavailable("connection reset"),
            // Of the transport here, not of etcd.
            Status::resource_exhausted("message too large"),
            Status::cancelled("h2 protocol error"),
        ] {
            assert!(matches!(answer(status.clone()), Answer::Nothing(_)), "{status:?}");
        }
    }

    #[test]
    fn what_is_too_long_is_no_fault_of_the_members() {
        let long = "Error, decoded message length too large: found 70000000 bytes, the limit is: 67108864 bytes";
        assert!(matches!(answer(Status::out_of_range(long)), Answer::TooLong(_)));
        let asked = "grpc: received message larger than max (3145791 vs. 2097152)";
        assert!(matches!(answer(Status::resource_exhausted(asked)), Answer::Refused(_)));
    }
}
