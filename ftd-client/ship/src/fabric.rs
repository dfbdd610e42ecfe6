//! Which provider is used, and where others find it.

use crate::native::{Domain, Endpoint, FabricError, Info};
use std::net::IpAddr;
use std::rc::Rc;

/// Short names, and the full ones of what has endpoints of the kind that is used here.
const FULL: [(&str, &str); 2] = [("verbs", "verbs;ofi_rxm"), ("tcp", "tcp;ofi_rxm")];

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
    /// Of those that were asked for: the better ones that could not be opened, and why.
    pub not: Option<String>,
}

impl Fabric {
    /// Opens the first of these providers that can be opened.
    ///
    /// # Errors
    /// Names what was tried, and what was wrong with each.
    pub fn open<'a>(names: impl IntoIterator<Item = &'a str>, address: IpAddr) -> Result<Fabric, OpenError> {
        let mut tried = Vec::new();
        for name in names {
            let full = FULL.iter().find(|(short, _)| *short == name).map_or(name, |(_, full)| full);
            match Self::open_one(full, address) {
                Ok((listener, domain)) => {
                    let not = (!tried.is_empty()).then(|| list(&tried));
                    return Ok(Fabric { listener, domain, not });
                }
                Err(error) => tried.push((full.to_string(), error)),
            }
        }
        Err(OpenError { address, tried })
    }

    fn open_one(name: &str, address: IpAddr) -> Result<(Endpoint, Rc<Domain>), FabricError> {
        let takes_one = ON_AN_ADDRESS.iter().any(|begin| name.starts_with(begin));
        let domain = Rc::new(Domain::open(Info::find(name, takes_one.then_some(address))?)?);
        Ok((Endpoint::open(&domain)?, domain))
    }
}
