//! TLS between the nodes' daemons: both ends have a certificate that the cluster's own CA has signed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto, version};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// A node's certificates, as PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificates {
    /// Who has signed those of all daemons.
    pub ca: PathBuf,
    /// This node's.
    pub certificate: PathBuf,
    /// The key of that.
    pub key: PathBuf,
}

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that holds no such thing.
    #[error("{}: {what}", path.display())]
    File {
        /// The key that names it.
        key: &'static str,
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// What does not fit together.
    #[error("the certificate and its key cannot be used: {0}")]
    Pair(String),
}

impl TlsError {
    /// The key of the configuration that is to be mended.
    pub fn key(&self) -> &'static str {
        match self {
            TlsError::File { key, .. } => key,
            TlsError::Pair(_) => "peers.cert-file",
        }
    }
}

/// Both ends of what this node's daemon speaks.
pub struct Tls {
    /// For who dials in.
    pub acceptor: TlsAcceptor,
    /// For whom this one dials.
    pub connector: TlsConnector,
}

impl Tls {
    /// As the files are now.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn read(files: &Certificates) -> Result<Tls, TlsError> {
        let pair = |error: tokio_rustls::rustls::Error| TlsError::Pair(error.to_string());
        let provider = Arc::new(crypto::ring::default_provider());
        let versions = [&version::TLS13];
        let roots = authorities(files)?;
        let own = certificates("peers.cert-file", &files.certificate)?;
        let key = || {
            PrivateKeyDer::from_pem_file(&files.key)
                .map_err(|error| file("peers.key-file", &files.key, error.to_string()))
        };
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let verifier = verifier.map_err(|error| TlsError::Pair(error.to_string()))?;
        let server =
            ServerConfig::builder_with_provider(provider.clone()).with_protocol_versions(&versions).map_err(pair)?;
        let server = server.with_client_cert_verifier(verifier).with_single_cert(own.clone(), key()?).map_err(pair)?;
        let client = ClientConfig::builder_with_provider(provider).with_protocol_versions(&versions).map_err(pair)?;
        let client = client.with_root_certificates(roots).with_client_auth_cert(own, key()?).map_err(pair)?;
        Ok(Tls { acceptor: Arc::new(server).into(), connector: Arc::new(client).into() })
    }
}

/// Why nodes with the same authorities would refuse this node's certificate at this moment: where it is dialled, by its name, and where it dials.
///
/// # Errors
/// [`TlsError`]: the files cannot be read.
pub fn refused_by_others(files: &Certificates, node: &str) -> Result<Vec<String>, TlsError> {
    let pair = |what: String| TlsError::Pair(what);
    let provider = Arc::new(crypto::ring::default_provider());
    let (roots, own) = (authorities(files)?, certificates("peers.cert-file", &files.certificate)?);
    let Some((own, between)) = own.split_first() else { return Ok(Vec::new()) };
    let name = ServerName::try_from(node.to_string()).map_err(|error| pair(format!("{node}: {error}")))?;
    let dialled = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
    let dialled = dialled.map_err(|error| pair(error.to_string()))?;
    let dials = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
    let dials = dials.map_err(|error| pair(error.to_string()))?;
    let now = UnixTime::now();
    let dialled = dialled.verify_server_cert(own, between, &name, &[], now).err();
    let dials = dials.verify_client_cert(own, between, now).err();
    let mut why: Vec<String> = dialled.into_iter().chain(dials).map(|error| error.to_string()).collect();
    why.dedup();
    Ok(why)
}

fn authorities(files: &Certificates) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates("peers.ca-file", &files.ca)? {
        let what = |error: tokio_rustls::rustls::Error| file("peers.ca-file", &files.ca, error.to_string());
        roots.add(authority).map_err(what)?;
    }
    Ok(Arc::new(roots))
}

fn file(key: &'static str, path: &Path, what: String) -> TlsError {
    TlsError::File { key, path: path.into(), what }
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |what: String| file(key, path, what);
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found.map_err(|error| wrong(error.to_string()))? {
        none if none.is_empty() => Err(wrong("it holds no PEM block 'CERTIFICATE'".into())),
        some => Ok(some),
    }
}
