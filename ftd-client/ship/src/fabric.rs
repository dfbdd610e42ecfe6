//! Which provider is used, and where others find it.

use crate::native::{Domain, Endpoint, FabricError, Info};
use std::net::IpAddr;
use std::rc::Rc;

/// The providers that are tried where none is named, best first.
const BEST: [&str; 5] = ["verbs;ofi_rxm", "cxi", "efa", "opx", "tcp;ofi_rxm"];

/// Those whose names begin like this are told on which address; the others have addresses of another kind.
const ON_AN_ADDRESS: [&str; 5] = ["verbs", "tcp", "net", "sockets", "udp"];

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
#[error("libfabric has no provider for {address}: {}", list(.tried))]
pub struct OpenError {
    address: IpAddr,
    tried: Vec<(String, FabricError)>,
}

fn list(tried: &[(String, FabricError)]) -> String {
    tried.iter().map(|(provider, error)| format!("{provider} ({error})")).collect::<Vec<_>>().join(", ")
}

/// A provider, and the endpoint to which others come.
#[derive(Debug)]
pub struct Fabric {
    /// Before the domain that it belongs to.
    pub listener: Endpoint,
    /// For endpoints and regions.
    pub domain: Rc<Domain>,
}

impl Fabric {
    /// Opens the provider of this name, or the best that there is.
    ///
    /// # Errors
    /// Names what was tried, and what was wrong with each.
    pub fn open(provider: Option<&str>, address: IpAddr) -> Result<Fabric, OpenError> {
        let mut tried = Vec::new();
        for name in provider.map_or(BEST.to_vec(), |name| vec![name]) {
            match Self::open_one(name, address) {
                Ok(fabric) => return Ok(fabric),
                Err(error) => tried.push((name.to_string(), error)),
            }
        }
        Err(OpenError { address, tried })
    }

    fn open_one(name: &str, address: IpAddr) -> Result<Fabric, FabricError> {
        let takes_one = ON_AN_ADDRESS.iter().any(|begin| name.starts_with(begin));
        let domain = Rc::new(Domain::open(Info::find(name, takes_one.then_some(address))?)?);
        Ok(Fabric { listener: Endpoint::open(&domain)?, domain })
    }
}
