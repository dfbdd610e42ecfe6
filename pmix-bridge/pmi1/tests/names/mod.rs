//! A directory of names, as an agent keeps one.

use ft_pmi1::{NameAnswer, NameRequest};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

#[derive(Debug, Default)]
pub struct Names(BTreeMap<String, String>);

impl Names {
    /// Does what `request` wants.
    pub fn handle(&mut self, request: &NameRequest) -> NameAnswer {
        let missing = NameAnswer::Refused("name is not published");
        match request {
            NameRequest::Publish { service, port } => match self.0.entry(service.clone()) {
                Entry::Occupied(_) => NameAnswer::Refused("name is already published"),
                Entry::Vacant(free) => {
                    free.insert(port.clone());
                    NameAnswer::Done
                }
            },
            NameRequest::Lookup { service } => self.0.get(service).cloned().map_or(missing, NameAnswer::Found),
            NameRequest::Unpublish { service } => self.0.remove(service).map_or(missing, |_| NameAnswer::Done),
        }
    }
}
