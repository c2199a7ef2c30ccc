//! The signed, numbered list that the authority makes of its grid.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use codec::OwnerId;
use rustls_pki_types::CertificateDer;

use super::{AuthorityDir, AuthorityDirError, Certify, at, grid_path};
use crate::address::Address;
use crate::identity::{HostId, Identity, Peer, Role, Validity, new_key, replace_public};
use crate::list::{Contents, GridList};

/// How long the identity of [`AuthorityDir::herald`] is valid.
const HERALD_LASTING: Duration = Duration::from_secs(3600);

impl AuthorityDir {
    /// Signs the present grid as the next list, and writes the list and the grid file. The list is written
    /// first, because it counts if the two differ.
    pub(super) fn publish(&mut self) -> Result<(), AuthorityDirError> {
        // Higher than the number of the list of revoked keys: programs that are too old for lists of
        // the grid go by that number.
        let last = self.grid.number().max(self.grid.revoked.number());
        let contents = self.grid.contents();
        let list = GridList::sign(&self.authority, last.saturating_add(1), &contents)?;
        let file = grid_path(&self.dir);
        let path = self.grid.list_path(&file);
        replace_public(&path, list.bytes()).map_err(at(&path))?;
        self.grid.list = Some(list);
        Ok(self.grid.save(&file)?)
    }

    /// Signs a list for a grid whose directory has none.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn ensure_list(&mut self) -> Result<(), AuthorityDirError> {
        match self.grid.list {
            Some(_) => Ok(()),
            None => self.publish(),
        }
    }

    /// Takes over a list that members have, if it is newer than the list in this directory, which then is
    /// an older copy. Returns whether it was newer.
    ///
    /// # Errors
    /// When a file can't be written.
    pub fn adopt(&mut self, list: GridList, contents: Contents) -> Result<bool, AuthorityDirError> {
        if list.number() <= self.grid.number() {
            return Ok(false);
        }
        let file = grid_path(&self.dir);
        let path = self.grid.list_path(&file);
        replace_public(&path, list.bytes()).map_err(at(&path))?;
        self.grid.follow(list, contents);
        self.grid.save(&file)?;
        Ok(true)
    }

    /// Changes the addresses of hosts in the list. Signs no list if none has changed.
    ///
    /// # Errors
    /// When the list can't be made or written.
    pub fn relocate(
        &mut self,
        addresses: &BTreeMap<HostId, Address>,
    ) -> Result<(), AuthorityDirError> {
        let mut is_other = false;
        for host in &mut self.grid.hosts {
            if let Some(addr) = addresses.get(&host.id).filter(|addr| **addr != host.addr) {
                host.addr = addr.clone();
                is_other = true;
            }
        }
        if is_other { self.publish() } else { Ok(()) }
    }

    /// Renews certificates of members, and puts the new ones into the list, with which they reach their
    /// members.
    ///
    /// # Errors
    /// When a certificate must not be signed, or the list can't be made or written.
    pub fn renew(
        &mut self,
        wishes: &[Certify],
        now: u64,
    ) -> Result<Vec<CertificateDer<'static>>, AuthorityDirError> {
        let mut signed = Vec::with_capacity(wishes.len());
        for wish in wishes {
            signed.push(self.sign_and_record(wish)?);
        }
        if signed.is_empty() {
            return Ok(signed);
        }
        self.save_members()?;
        let keys: BTreeSet<OwnerId> = wishes.iter().map(|wish| wish.key).collect();
        self.grid.renewed.retain(|one| {
            let peer = Peer::from_certificate(one);
            peer.is_ok_and(|peer| peer.not_after > now && !keys.contains(&peer.id))
        });
        self.grid.renewed.extend(signed.iter().cloned());
        self.publish()?;
        Ok(signed)
    }

    /// Takes a host or a registry out of the list, and returns its key, which is not revoked.
    ///
    /// # Errors
    /// When it is not in the list, several are meant, or a file can't be written.
    pub fn remove(&mut self, who: &str) -> Result<OwnerId, AuthorityDirError> {
        let hosts = self.grid.hosts.iter().map(|one| (&one.name, one.id.0));
        let registries = self.grid.registries.iter();
        let registries = registries.map(|one| (&one.name, one.id.0));
        let digits = who.to_ascii_lowercase();
        let is_meant = |(name, key): &(&String, OwnerId)| {
            *name == who || (digits.len() >= 8 && key.hex().starts_with(&digits))
        };
        let meant: Vec<OwnerId> = hosts
            .chain(registries)
            .filter(is_meant)
            .map(|(_, key)| key)
            .collect();
        let key = match meant.as_slice() {
            [] => return Err(AuthorityDirError::NotListed(who.to_owned())),
            [key, rest @ ..] if rest.iter().all(|other| other == key) => *key,
            more => return Err(AuthorityDirError::Ambiguous(who.to_owned(), more.len())),
        };
        self.take_out(key);
        self.publish()?;
        Ok(key)
    }

    pub(super) fn is_listed(&self, key: OwnerId) -> bool {
        let mut hosts = self.grid.hosts.iter();
        let mut registries = self.grid.registries.iter();
        hosts.any(|one| one.id.0 == key) || registries.any(|one| one.id.0 == key)
    }

    pub(super) fn take_out(&mut self, key: OwnerId) {
        self.grid.hosts.retain(|host| host.id.0 != key);
        self.grid.registries.retain(|one| one.id.0 != key);
        let revoked = &self.grid.revoked;
        self.grid.renewed.retain(|one| {
            Peer::from_certificate(one).is_ok_and(|peer| !revoked.contains(&peer.id))
        });
    }

    /// An identity with which the authority can connect to members for an hour. It has a new key that is
    /// written to no file, so that the authority's own key is not used in connections.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn herald(&self, now: u64) -> Result<Identity, AuthorityDirError> {
        let secret = new_key()?;
        let validity = Validity {
            from: now,
            lasting: HERALD_LASTING.min(Duration::from_secs(self.expires.saturating_sub(now))),
        };
        let roles = [Role::Admin];
        let certificate = self
            .authority
            .sign(&roles, "authority", secret.id(), validity)?;
        Ok(Identity::new(secret, certificate)?)
    }

    /// All certificates that were signed, in the order of signing, those of revoked members included.
    pub fn issued(&self) -> &[super::Issued] {
        &self.issued
    }
}
