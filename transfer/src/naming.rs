//! Finds hosts by the names in their certificates.

use tokio::task::JoinSet;

use crate::HostIndex;
use crate::hosts::Hosts;
use crate::roster::with_key;

impl Hosts {
    /// The name that registries report of a host, if its certificate has another one.
    pub fn misnamed(&self, host: HostIndex) -> Option<&str> {
        self.names().shown(host)?;
        self.entry(host).map(|host| host.name.as_str())
    }

    /// The host of this name. A host whose name only registries report is asked for its certificate
    /// first, so that no host is taken for another.
    pub async fn named(&self, name: &str) -> Option<HostIndex> {
        let is_reported_as = |host: &HostIndex| {
            let entry = self.entry(*host);
            // Registries may report one name of several hosts.
            entry.is_some_and(|entry| entry.name == name || entry.name == with_key(name, entry.id))
        };
        let is_shown = |host: &HostIndex| self.name(*host) == name;
        let listed = self
            .all()
            .find(|host| self.names().is_listed(*host) && is_shown(host));
        if listed.is_some() {
            return listed;
        }
        let mut asking = JoinSet::new();
        for host in self.all().filter(is_reported_as) {
            let hosts = self.clone();
            asking.spawn(async move { drop(hosts.connection(host).await) });
        }
        asking.join_all().await;
        let is_certified = |host: &HostIndex| {
            let certified = self.names().certified(*host);
            certified.is_some_and(|certified| certified.name == name)
        };
        let certified: Vec<HostIndex> = self.all().filter(is_certified).collect();
        let found = certified.iter().copied().find(is_shown);
        let found = found.or_else(|| certified.first().copied());
        // Of a host that does not answer, only the reported name is known.
        found.or_else(|| self.all().find(is_shown))
    }
}
