//! What must be known to reach etcd.

use crate::StoreError;
use etcd_client::{Certificate, Identity, TlsOptions};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tonic::transport::Endpoint;

/// A member that says nothing for so long is left for the next one.
const ATTEMPT: Duration = Duration::from_secs(2);
/// A connection on which a watch waits is tried so often: etcd takes more than one in 5 s for an attack.
const PROBE: Duration = Duration::from_secs(6);

/// So many calls and watches may be under way on a connection: etcd takes 250 (with TLS, before 3.4.20 and 3.5.5), and who asks for more waits for
/// all others.
const STREAMS: u32 = 256;
/// Of one that nobody reads, so much is taken from etcd …
const UNREAD: u32 = 256 << 10;
/// … and of all together always more than they can have unread: nobody holds up anybody else.
const TOGETHER: u32 = 2 * STREAMS * UNREAD;

/// So many calls that were given up are remembered, and what still comes of them is dropped.
const RESETS: usize = 1024;

/// Where etcd is, and who this is.
#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// Its members: `https://host:2379`, or `http://` without TLS.
    pub endpoints: Vec<String>,
    /// For `https`.
    pub tls: Option<Tls>,
    /// If etcd asks who it is by name.
    pub login: Option<Login>,
    /// How long one member may take before the next one is asked.
    pub attempt: Duration,
    /// A connection on which nothing was asked for so long is closed, watch or not; else it stays.
    pub idle: Option<Duration>,
}

/// Certificates, as PEM files.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Who has signed etcd's certificate.
    pub ca: PathBuf,
    /// This node's certificate and its key, if etcd asks for one.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that etcd's certificate has, if it is not the endpoint's.
    pub name: Option<String>,
}

/// A user of etcd.
#[derive(Clone)]
pub struct Login {
    /// Its name.
    pub user: String,
    /// Its password.
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({}, …)", self.user)
    }
}

/// A member, and how it is reached.
#[derive(Debug)]
pub(super) struct Member {
    pub name: String,
    pub endpoint: Endpoint,
}

impl EtcdOptions {
    /// Members that are reached without TLS and without a password.
    pub fn plain(endpoints: impl IntoIterator<Item = String>) -> EtcdOptions {
        EtcdOptions { endpoints: endpoints.into_iter().collect(), tls: None, login: None, attempt: ATTEMPT, idle: None }
    }

    pub(super) fn members(&self) -> Result<Vec<Member>, StoreError> {
        if self.endpoints.is_empty() {
            return Err(StoreError::Options(
                "no endpoint is named, and at least one member of etcd must be known".into(),
            ));
        }
        let tls = self.tls.as_ref().map(Tls::read).transpose()?;
        self.endpoints.iter().map(|url| self.member(url, tls.as_ref())).collect()
    }

    fn member(&self, url: &str, tls: Option<&TlsOptions>) -> Result<Member, StoreError> {
        let wrong = |what: String| StoreError::Options(format!("endpoint '{url}': {what}"));
        let secure = url.starts_with("https://");
        if !secure && !url.starts_with("http://") {
            return Err(wrong("it must begin with https:// (or with http://, for etcd without TLS)".into()));
        }
        let mut endpoint = Endpoint::from_shared(url.to_string())
            .map_err(|error| wrong(super::answer::chain(&error)))?
            .connect_timeout(self.attempt)
            .http2_keep_alive_interval(PROBE)
            .keep_alive_timeout(self.attempt)
            .initial_stream_window_size(UNREAD)
            .initial_connection_window_size(TOGETHER)
            // What was given up may still be answered: no reason to end the connection of all, with a server that is one's own.
            .http2_max_concurrent_reset_streams(RESETS)
            .http2_max_local_error_reset_streams(None);
        match tls {
            Some(tls) if secure => {
                let told = endpoint.tls_config(tls.clone());
                endpoint = told.map_err(|error| wrong(format!("its TLS: {}", super::answer::chain(&error))))?;
            }
            Some(_) => {
                return Err(wrong("certificates are named, and http:// has no use for them: https:// is meant".into()));
            }
            None if secure => {
                return Err(wrong("https:// needs the file of the CA that signed its certificate".into()));
            }
            None => {}
        }
        Ok(Member { name: url.to_string(), endpoint })
    }
}

impl Tls {
    fn read(&self) -> Result<TlsOptions, StoreError> {
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(pem(&self.ca, "CERTIFICATE")?));
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(Identity::from_pem(pem(certificate, "CERTIFICATE")?, pem(key, "PRIVATE KEY")?));
        }
        match &self.name {
            Some(name) => Ok(tls.domain_name(name)),
            None => Ok(tls),
        }
    }
}

/// The file's content, if there is at least one such thing in it: what says it is a certificate and holds none trusts nobody.
fn pem(path: &Path, what: &str) -> Result<Vec<u8>, StoreError> {
    let content = std::fs::read(path).map_err(|error| StoreError::File { path: path.into(), error })?;
    let text = String::from_utf8_lossy(&content);
    if !text.lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(what)) {
        let sentence = format!("{} holds no PEM block '{what}'", path.display());
        return Err(StoreError::Options(sentence));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(options: &EtcdOptions) -> String {
        options.members().unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_work_is_said_before_anything_is_tried() {
        let plain = |url: &str| EtcdOptions::plain([url.to_string()]);
        assert!(sentence(&EtcdOptions::plain([])).contains("no endpoint"));
        assert!(sentence(&plain("n1:2379")).contains("must begin with https://"));
        assert!(sentence(&plain("https://n1:2379")).contains("needs the file of the CA"));
        let tls = |ca: &Path| Some(Tls { ca: ca.into(), identity: None, name: None });
        let gone = EtcdOptions { tls: tls(Path::new("/nowhere/ca.pem")), ..plain("https://n1:2379") };
        assert!(sentence(&gone).contains("/nowhere/ca.pem, which cannot be read: No such file"), "{}", sentence(&gone));
        let empty = tempfile::NamedTempFile::new().unwrap();
        let empty = EtcdOptions { tls: tls(empty.path()), ..plain("https://n1:2379") };
        assert!(sentence(&empty).contains("holds no PEM block 'CERTIFICATE'"));
        assert!(plain("http://n1:2379").members().is_ok());
    }

    #[test]
    fn a_password_is_not_written_down() {
        let login = Login { user: "ftd".into(), password: "secret".into() };
        assert!(!format!("{login:?}").contains("secret"));
    }
}
