//! The keys that a program holds: an owner's key for all of their jobs, or job keys for some of them.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::grant::{Grant, GrantError, GrantScope, NewGrant, Rights};
use crate::id::{CheckpointId, JobTag, OwnerId, PublicKey, Version};
use crate::job::{JobId, JobScope};
use crate::scope::{JobSecret, Path, Scope, tag_of};
use crate::seal::{Cipher, OpenError, OwnerSecret, SealContext, SegmentSealer, SummaryKey};
use crate::serial::{self, SerialError};

/// Most bytes of encoded job keys.
pub const JOB_KEYS_BYTES_MAX: usize = 256 << 10;

const FORMAT: u16 = 1;

/// The keys that a program holds.
#[derive(Clone, Debug)]
pub enum Keys {
    /// The keys of all jobs of an owner.
    Owner(OwnerSecret),
    /// The keys of one job, or of all jobs below a prefix.
    Job(Box<JobKeys>),
}

impl From<OwnerSecret> for Keys {
    fn from(owner: OwnerSecret) -> Self {
        Self::Owner(owner)
    }
}

impl From<JobKeys> for Keys {
    fn from(keys: JobKeys) -> Self {
        Self::Job(Box::new(keys))
    }
}

impl Keys {
    /// The owner of the jobs.
    pub fn owner(&self) -> OwnerId {
        match self {
            Self::Owner(owner) => owner.id(),
            Self::Job(keys) => keys.grant.terms().owner,
        }
    }

    /// The public half of the key that signs.
    pub fn signer(&self) -> PublicKey {
        self.identity().id().into()
    }

    /// The key that signs, and that identifies the program in connections.
    pub const fn identity(&self) -> &OwnerSecret {
        match self {
            Self::Owner(owner) => owner,
            Self::Job(keys) => &keys.key,
        }
    }

    /// The grant that allows the signer to sign; `None` for the owner.
    pub const fn grant(&self) -> Option<&Grant> {
        match self {
            Self::Owner(_) => None,
            Self::Job(keys) => Some(&keys.grant),
        }
    }

    /// Whether the keys give these rights.
    pub const fn may(&self, rights: Rights) -> bool {
        match self {
            Self::Owner(_) => true,
            Self::Job(keys) => keys.grant.terms().rights.has(rights),
        }
    }

    /// Tag and path of a job; `None` if the keys are not for it.
    pub fn tag_and_path(&self, job: &JobId) -> Option<(JobTag, Path)> {
        match self {
            Self::Owner(owner) => {
                let (_, path) = Scope::of_owner(owner.seed()).job(job)?;
                Some((owner_tag(owner, job, &path), path))
            }
            Self::Job(keys) => keys.tag_and_path(job),
        }
    }

    /// What hosts see of a job instead of its name; `None` if the keys are not for it.
    pub fn job_tag(&self, job: &JobId) -> Option<JobTag> {
        self.tag_and_path(job).map(|(tag, _)| tag)
    }

    /// Ed25519 signature of `message`.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.identity().sign(message)
    }

    /// Seals and opens the journal of the save of a checkpoint; `None` if the keys are not for the job.
    pub fn journal_sealer(&self, job: &JobId, checkpoint: CheckpointId) -> Option<SegmentSealer> {
        let (job_tag, path) = self.tag_and_path(job)?;
        let key = self
            .job_secret(job_tag, &path)
            .ok()?
            .journal_key(checkpoint);
        let context = SealContext {
            checkpoint,
            job_tag,
            version: Version::FIRST,
        };
        Some(SegmentSealer::new(Cipher::Aes256Gcm, &key, context))
    }

    fn job_secret(&self, tag: JobTag, path: &Path) -> Result<JobSecret, OpenError> {
        match self {
            Self::Owner(owner) => Scope::of_owner(owner.seed()).find(path),
            Self::Job(keys) => keys.secret(tag, path),
        }
    }

    /// Key of the summary of a checkpoint of the job with this path.
    pub(crate) fn summary_key(
        &self,
        tag: JobTag,
        path: &Path,
        id: CheckpointId,
    ) -> Result<SummaryKey, OpenError> {
        Ok(self.job_secret(tag, path)?.summary_key(id))
    }
}

/// The tag of a job. That of a name without a slash is made from the name, not from its path.
fn owner_tag(owner: &OwnerSecret, job: &JobId, path: &Path) -> JobTag {
    match path.depth() {
        1 => owner.plain_job_tag(job),
        _ => tag_of(owner.id(), &path.blinded()),
    }
}

/// Keys of one job, or of all jobs below a prefix. The machine of a job has these instead of the owner's
/// key.
#[derive(Clone)]
pub struct JobKeys {
    /// A key pair of its own, named by the grant.
    key: OwnerSecret,
    grant: Grant,
    scope: JobScope,
    reach: Reach,
}

/// The secrets from which the keys of summaries are derived.
#[derive(Clone, Serialize, Deserialize)]
enum Reach {
    Job { secret: JobSecret, path: Path },
    Below(Scope),
}

/// Fields of the grant of new job keys.
#[derive(Clone, Debug)]
pub struct NewJobKeys {
    /// The grid: the hash of its authority's certificate.
    pub grid: [u8; 32],
    /// The jobs that the keys are for.
    pub scope: JobScope,
    /// What the keys may do with these jobs.
    pub rights: Rights,
    /// Number of the grant.
    pub serial: u64,
    /// When the grant begins, Unix seconds.
    pub not_before: u64,
    /// When the grant ends, Unix seconds.
    pub not_after: u64,
}

/// Why bytes are no job keys, or why job keys can't be issued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobKeysError {
    /// The bytes are malformed.
    #[error("job key: {0}")]
    Serial(#[from] SerialError),
    /// The grant is not valid.
    #[error("job key: {0}")]
    Grant(#[from] GrantError),
    /// A format that this version does not read.
    #[error("job key of format {0}, which is not known to this version")]
    Format(u16),
    /// A part does not belong to the grant.
    #[error("job key: {0} is not that of the grant")]
    Mismatch(&'static str),
    /// The name has too many components to be a scope.
    #[error("no key can be made for {0}")]
    Scope(JobScope),
}

/// The encoded form of job keys.
#[derive(Serialize, Deserialize)]
struct Written {
    format: u16,
    seed: [u8; 32],
    #[serde(with = "serde_bytes")]
    grant: Vec<u8>,
    scope: JobScope,
    reach: Reach,
    /// Keys of single checkpoints, which no program needs any more. Written empty, and passed over.
    summaries: Vec<(CheckpointId, [u8; 32])>,
}

impl Drop for Written {
    fn drop(&mut self) {
        self.seed.zeroize();
    }
}

impl JobKeys {
    /// Makes keys for some of an owner's jobs. `seed` is that of their new key pair, 32 random bytes.
    ///
    /// # Errors
    /// When the grant contradicts itself, or no key can be made for the scope.
    pub fn issue(
        owner: &OwnerSecret,
        seed: [u8; 32],
        new: NewJobKeys,
    ) -> Result<Self, JobKeysError> {
        let key = OwnerSecret::new(seed);
        let all = Scope::of_owner(owner.seed());
        let (scope, reach) = match &new.scope {
            JobScope::Job(job) => {
                let made = all.job(job);
                let (secret, path) = made.ok_or_else(|| JobKeysError::Scope(new.scope.clone()))?;
                let tag = owner_tag(owner, job, &path);
                (GrantScope::Job(tag), Reach::Job { secret, path })
            }
            JobScope::Below(name) => {
                let made = all.job(name);
                let (_, path) = made.ok_or_else(|| JobKeysError::Scope(new.scope.clone()))?;
                let tag = tag_of(owner.id(), &path.blinded());
                (GrantScope::Below(tag), Reach::Below(all.below(name)))
            }
        };
        let terms = NewGrant {
            grid: new.grid,
            key: key.id().into(),
            scope,
            rights: new.rights,
            serial: new.serial,
            not_before: new.not_before,
            not_after: new.not_after,
        };
        let keys = Self {
            grant: Grant::sign(owner, terms)?,
            key,
            scope: new.scope,
            reach,
        };
        keys.checked()
    }

    /// Reads what [`Self::encode`] writes.
    ///
    /// # Errors
    /// When the bytes are no job keys, or their parts do not belong together.
    pub fn decode(bytes: &[u8]) -> Result<Self, JobKeysError> {
        let written: Written = serial::decode(bytes, JOB_KEYS_BYTES_MAX)?;
        if written.format != FORMAT {
            return Err(JobKeysError::Format(written.format));
        }
        let keys = Self {
            key: OwnerSecret::new(written.seed),
            grant: Grant::parse(&written.grant)?,
            scope: written.scope.clone(),
            reach: written.reach.clone(),
        };
        keys.checked()
    }

    fn checked(self) -> Result<Self, JobKeysError> {
        let terms = self.grant.terms();
        if terms.key != self.key.id().into() {
            return Err(JobKeysError::Mismatch("the key"));
        }
        let depth = self.scope.name().components().count();
        let is_right = match (&self.scope, &self.reach, terms.scope) {
            (JobScope::Job(_), Reach::Job { path, .. }, GrantScope::Job(tag)) => {
                path.depth() == depth && (depth == 1 || tag_of(terms.owner, &path.blinded()) == tag)
            }
            (JobScope::Below(name), Reach::Below(scope), GrantScope::Below(tag)) => {
                scope.has_tag(terms.owner, tag) && scope.depth() == name.components().count()
            }
            _ => false,
        };
        if is_right {
            Ok(self)
        } else {
            Err(JobKeysError::Mismatch("the scope"))
        }
    }

    /// The keys as bytes, for the key file. These bytes are secret.
    ///
    /// # Errors
    /// Never: job keys are shorter than [`JOB_KEYS_BYTES_MAX`].
    pub fn encode(&self) -> Result<Zeroizing<Vec<u8>>, JobKeysError> {
        let written = Written {
            format: FORMAT,
            seed: *self.key.seed(),
            grant: self.grant.bytes().to_vec(),
            scope: self.scope.clone(),
            reach: self.reach.clone(),
            summaries: Vec::new(),
        };
        let bytes = serial::encode(&written, JOB_KEYS_BYTES_MAX)?;
        Ok(Zeroizing::new(bytes))
    }

    /// These keys without the secrets that open the jobs' checkpoints: who has them can do with the shards what the
    /// grant allows, and reads none. `None` for keys of all jobs below a prefix, whose tags follow from the secrets.
    #[must_use]
    pub fn without_secrets(self) -> Option<Self> {
        let Reach::Job { path, .. } = self.reach else {
            return None;
        };
        let secret = JobSecret::of_none();
        Some(Self {
            reach: Reach::Job { secret, path },
            ..self
        })
    }

    /// The grant by which these keys are allowed to act.
    pub const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// The jobs that these keys are for.
    pub const fn scope(&self) -> &JobScope {
        &self.scope
    }

    fn tag_and_path(&self, job: &JobId) -> Option<(JobTag, Path)> {
        if !self.scope.has(job) {
            return None;
        }
        let terms = self.grant.terms();
        match (&self.reach, terms.scope) {
            (Reach::Job { path, .. }, GrantScope::Job(tag)) => Some((tag, path.clone())),
            (Reach::Below(scope), GrantScope::Below(_)) => {
                let (_, path) = scope.job(job)?;
                Some((tag_of(terms.owner, &path.blinded()), path))
            }
            _ => None,
        }
    }

    fn secret(&self, tag: JobTag, path: &Path) -> Result<JobSecret, OpenError> {
        match (&self.reach, self.grant.terms().scope) {
            (Reach::Job { secret, .. }, GrantScope::Job(only)) if only == tag => Ok(secret.clone()),
            (Reach::Below(scope), GrantScope::Below(_)) => scope.find(path),
            _ => Err(OpenError),
        }
    }
}

impl fmt::Debug for JobKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobKeys")
            .field("scope", &self.scope)
            .field("grant", self.grant.terms())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> OwnerSecret {
        OwnerSecret::new([9; 32])
    }

    fn issue(scope: &str) -> JobKeys {
        let new = NewJobKeys {
            grid: [1; 32],
            scope: scope.parse().unwrap(),
            rights: Rights::SAVE.and(Rights::RESTORE),
            serial: 7,
            not_before: 1_000_000,
            not_after: 2_000_000,
        };
        JobKeys::issue(&owner(), [2; 32], new).unwrap()
    }

    fn job(text: &str) -> JobId {
        text.parse().unwrap()
    }

    #[test]
    fn job_keys_agree_with_the_owner_on_tags_and_paths_of_their_jobs_and_have_no_others() {
        let all = Keys::from(owner());
        let jobs = ["42", "a", "a/b", "a/b/c", "a/b/c/d", "a/bc", "b"];
        for (scope, mine) in [
            ("42", vec!["42"]),
            ("a", vec!["a"]),
            ("a/b", vec!["a/b"]),
            ("a/", vec!["a/b", "a/b/c", "a/b/c/d", "a/bc"]),
            ("a/b/", vec!["a/b/c", "a/b/c/d"]),
        ] {
            let keys = Keys::from(issue(scope));
            assert_eq!(keys.owner(), owner().id());
            for name in jobs {
                let theirs = keys.tag_and_path(&job(name));
                assert_eq!(theirs.is_some(), mine.contains(&name), "{scope} {name}");
                let owners = all.tag_and_path(&job(name)).unwrap();
                let terms = keys.grant().unwrap().terms();
                let covers = terms.covers(owners.0, &owners.1.blinded());
                assert_eq!(covers, theirs.is_some(), "{scope} {name}");
                if let Some(theirs) = theirs {
                    assert_eq!(theirs, owners);
                }
            }
        }
    }

    #[test]
    fn keys_without_secrets_have_the_tag_and_the_grant_and_open_nothing() {
        let id = CheckpointId([5; 16]);
        for name in ["42", "a/b"] {
            let sealed = issue(name).without_secrets().unwrap();
            let bytes = sealed.encode().unwrap();
            let sealed = JobKeys::decode(&bytes).unwrap();
            assert_eq!(sealed.grant().terms(), issue(name).grant().terms());
            let (sealed, open) = (Keys::from(sealed), Keys::from(issue(name)));
            let (tag, path) = open.tag_and_path(&job(name)).unwrap();
            assert_eq!(sealed.tag_and_path(&job(name)), Some((tag, path.clone())));
            let theirs = sealed.summary_key(tag, &path, id).unwrap();
            assert!(theirs.0 != open.summary_key(tag, &path, id).unwrap().0);
        }
        assert!(issue("a/").without_secrets().is_none());
    }

    #[test]
    fn summary_keys_are_had_for_the_own_jobs_only() {
        let all = Keys::from(owner());
        let id = CheckpointId([5; 16]);
        for scope in ["42", "a/b", "a/", "a/b/"] {
            let keys = issue(scope);
            let is_mine = |name: &JobId| keys.scope().has(name);
            for name in ["42", "43", "a", "a/b", "a/c", "a/b/c"].map(job) {
                let (tag, path) = all.tag_and_path(&name).unwrap();
                let owners = all.summary_key(tag, &path, id).unwrap();
                let theirs = Keys::from(keys.clone()).summary_key(tag, &path, id);
                assert!(theirs.is_ok() == is_mine(&name), "{scope} {name}");
                assert!(theirs.is_err() || theirs == Ok(owners));
            }
        }
    }

    #[test]
    fn job_keys_come_back_and_parts_of_others_are_refused() {
        for scope in ["42", "a/b", "a/b/", "a/"] {
            let keys = issue(scope);
            let bytes = keys.encode().unwrap();
            let back = JobKeys::decode(&bytes).unwrap();
            assert_eq!(back.encode().unwrap(), bytes);
            assert_eq!(back.scope().to_string(), scope);
            for len in 0..bytes.len() {
                assert!(JobKeys::decode(&bytes[..len]).is_err());
            }
            let mixed = JobKeys {
                key: OwnerSecret::new([3; 32]),
                ..keys.clone()
            };
            let refused = JobKeys::decode(&mixed.encode().unwrap()).map(|_| ());
            assert_eq!(refused, Err(JobKeysError::Mismatch("the key")));
            for other in ["a/c", "b/c/", "b/", "a/b/c"] {
                let mixed = JobKeys {
                    reach: issue(other).reach,
                    ..keys.clone()
                };
                let refused = JobKeys::decode(&mixed.encode().unwrap()).map(|_| ());
                assert_eq!(
                    refused,
                    Err(JobKeysError::Mismatch("the scope")),
                    "{scope} {other}"
                );
            }
        }
    }

    #[test]
    fn keys_of_single_checkpoints_in_a_file_are_passed_over() {
        let keys = issue("42");
        let bytes = keys.encode().unwrap();
        // The count of these keys is the last byte, and nothing follows it.
        let (count, before) = bytes.split_last().unwrap();
        assert_eq!(*count, 0);
        let with_one = [before, [1].as_slice(), [5; 48].as_slice()].concat();
        let back = JobKeys::decode(&with_one).unwrap();
        assert_eq!(back.encode().unwrap(), bytes);
    }

    #[test]
    fn secrets_are_not_printed() {
        let shown = format!("{:?}", Keys::from(issue("a/b/")));
        assert!(
            shown.contains("JobKeys") && !shown.contains("secret"),
            "{shown}"
        );
    }
}
