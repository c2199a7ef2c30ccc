//! Secrets and tags of jobs whose names have components, such as `lab/sim/42`.
//!
//! A **scope** is a prefix of names: `lab`, `lab/sim`. Each scope has a secret, which is derived from the
//! secret of the scope above it, the first from the owner's key; the job's own secret is derived from the
//! last scope. So a holder of the secret of a scope can derive the secrets of all jobs below it, and no
//! others.
//!
//! ```text
//! owner's key -> scope `lab` -> scope `lab/sim` -> secret of the job `lab/sim/42`
//! ```
//!
//! Hosts see a **blinded** form of each component, and the job's tag is a hash over these. So hosts can
//! check that a job is below a prefix, and learn neither name.
//!
//! The **path** of a job is part of each of its manifests. The path has the blinded components, and beside
//! each component the secret that belongs to it, sealed with a key from the scope above. So the owner, or a
//! holder of the secret of a prefix, can open a manifest without knowing the name of its job.

use aws_lc_rs::aead::Aad;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::id::{CheckpointId, JobTag, OwnerId, byte_id};
use crate::job::{JOB_COMPONENTS_MAX, JobId};
use crate::seal::{DataKey, OpenError, SummaryKey, aes_key, zero_nonce};

byte_id! {
    /// What hosts see of a component of a job's name.
    Blinded, 32
}

/// The secret of all jobs below a prefix.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop, Serialize, Deserialize)]
pub(crate) struct ScopeSecret([u8; 32]);

/// The secret of one job.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop, Serialize, Deserialize)]
pub(crate) struct JobSecret([u8; 32]);

/// One component of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Level {
    blinded: Blinded,
    /// The secret of this component's scope or, in the last level, of the job; sealed with a key from the
    /// secret of the scope above.
    sealed: [u8; 32],
    /// AES-GCM tag of `sealed`.
    tag: [u8; 16],
}

/// The path of a job: a level for each component of its name. All manifests of the job have the same path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Level>", into = "Vec<Level>")]
pub struct Path(Vec<Level>);

/// The path has no components, or too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a path of {0} components, not 1 to {JOB_COMPONENTS_MAX}")]
pub struct PathLength(usize);

impl TryFrom<Vec<Level>> for Path {
    type Error = PathLength;

    fn try_from(levels: Vec<Level>) -> Result<Self, PathLength> {
        match levels.len() {
            1..=JOB_COMPONENTS_MAX => Ok(Self(levels)),
            other => Err(PathLength(other)),
        }
    }
}

impl From<Path> for Vec<Level> {
    fn from(path: Path) -> Self {
        path.0
    }
}

impl Path {
    /// The blinded components, as hosts see them.
    pub fn blinded(&self) -> Vec<Blinded> {
        self.0.iter().map(|level| level.blinded).collect()
    }

    /// How many components the job's name has between its slashes.
    pub const fn depth(&self) -> usize {
        self.0.len()
    }
}

/// The tag of the scope with these blinded components. The job of the same name has this tag, too, if it
/// has at least two components.
pub fn tag_of(owner: OwnerId, path: &[Blinded]) -> JobTag {
    let root = JobTag(blake3::derive_key("ckpt v2 owner tag", &owner.0));
    path.iter().fold(root, tag_below)
}

/// Whether the path of a job can have the tag. It can't be checked for a name of one component, whose tag is
/// made otherwise.
pub(crate) fn is_path_of(owner: OwnerId, path: &[Blinded], tag: JobTag) -> bool {
    match path.len() {
        1 => true,
        2..=JOB_COMPONENTS_MAX => tag_of(owner, path) == tag,
        _ => false,
    }
}

fn tag_below(above: JobTag, blinded: &Blinded) -> JobTag {
    let mut hasher = blake3::Hasher::new_derive_key("ckpt v2 job tag");
    hasher.update(&above.0).update(&blinded.0);
    JobTag(*hasher.finalize().as_bytes())
}

/// The components of `path` below the scope with the tag `prefix`; `None` if the path does not lead
/// through that scope.
pub fn rest_below(owner: OwnerId, prefix: JobTag, path: &[Blinded]) -> Option<&[Blinded]> {
    let depth = (1..path.len()).find(|&depth| tag_of(owner, &path[..depth]) == prefix)?;
    path.get(depth..)
}

impl ScopeSecret {
    /// The secret of all jobs of an owner.
    pub(crate) fn of_owner(seed: &[u8; 32]) -> Self {
        Self(blake3::derive_key("ckpt v2 scope", seed))
    }

    fn below(&self, component: &str) -> Self {
        Self(*blake3::keyed_hash(&self.0, component.as_bytes()).as_bytes())
    }

    fn job(&self, component: &str) -> JobSecret {
        let key = Zeroizing::new(blake3::derive_key("ckpt v2 job secret", &self.0));
        JobSecret(*blake3::keyed_hash(&key, component.as_bytes()).as_bytes())
    }

    fn blinded(&self) -> Blinded {
        Blinded(blake3::derive_key("ckpt v2 blinded component", &self.0))
    }

    /// The secret of the scope with these further components. Appends their levels to `path`.
    fn descend<'a>(
        &self,
        components: impl Iterator<Item = &'a str>,
        path: &mut Vec<Level>,
    ) -> Self {
        components.fold(self.clone(), |scope, component| {
            let below = scope.below(component);
            path.push(Level::seal(&scope, Wrap::Scope, below.blinded(), &below.0));
            below
        })
    }

    /// Secret and path of the job with these further components, at least one; `path` has the levels above.
    fn finish(&self, components: &[&str], mut path: Vec<Level>) -> Option<(JobSecret, Path)> {
        let (last, above) = components.split_last()?;
        let scope = self.descend(above.iter().copied(), &mut path);
        let secret = scope.job(last);
        let blinded = scope.below(last).blinded();
        path.push(Level::seal(&scope, Wrap::Job, blinded, &secret.0));
        Some((secret, Path::try_from(path).ok()?))
    }

    /// Opens `levels`, which begin below this scope, one after the other, down to the job's secret.
    fn find(&self, levels: &[Level]) -> Result<JobSecret, OpenError> {
        let (last, above) = levels.split_last().ok_or(OpenError)?;
        let scope = above.iter().try_fold(self.clone(), |scope, level| {
            level.open(&scope, Wrap::Scope).map(Self)
        })?;
        last.open(&scope, Wrap::Job).map(JobSecret)
    }
}

impl JobSecret {
    /// Takes the place of a secret that is not given away. It is that of no job, as secrets are hashes.
    pub(crate) const fn of_none() -> Self {
        Self([0; 32])
    }

    /// Key of the summary of one of the job's checkpoints.
    pub(crate) fn summary_key(&self, checkpoint: CheckpointId) -> SummaryKey {
        let mut hasher = blake3::Hasher::new_derive_key("ckpt v2 summary");
        hasher.update(&self.0).update(&checkpoint.0);
        SummaryKey(*hasher.finalize().as_bytes())
    }
}

impl JobSecret {
    /// Key of the journal of the save of one of the job's checkpoints.
    pub(crate) fn journal_key(&self, checkpoint: CheckpointId) -> DataKey {
        let mut hasher = blake3::Hasher::new_derive_key("ckpt v1 save journal");
        hasher.update(&self.0).update(&checkpoint.0);
        DataKey::new(*hasher.finalize().as_bytes())
    }
}

/// The kind of secret that is sealed in a level.
#[derive(Clone, Copy)]
enum Wrap {
    Scope,
    Job,
}

impl Wrap {
    /// The key that seals the secret of one component in one scope, and nothing else.
    fn key(self, scope: &ScopeSecret, blinded: Blinded) -> Zeroizing<[u8; 32]> {
        let context = match self {
            Self::Scope => "ckpt v2 wrapped scope secret",
            Self::Job => "ckpt v2 wrapped job secret",
        };
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(&scope.0).update(&blinded.0);
        Zeroizing::new(*hasher.finalize().as_bytes())
    }
}

impl Level {
    fn seal(scope: &ScopeSecret, wrap: Wrap, blinded: Blinded, secret: &[u8; 32]) -> Self {
        let mut sealed = *secret;
        let key = aes_key(&wrap.key(scope, blinded));
        let done = key.seal_in_place_separate_tag(zero_nonce(), Aad::empty(), &mut sealed);
        let Ok(made) = done else {
            unreachable!("32 bytes fit into one AES-GCM message")
        };
        let mut tag = [0; 16];
        tag.copy_from_slice(made.as_ref());
        Self {
            blinded,
            sealed,
            tag,
        }
    }

    fn open(&self, scope: &ScopeSecret, wrap: Wrap) -> Result<[u8; 32], OpenError> {
        let mut both = Zeroizing::new([self.sealed.as_slice(), &self.tag].concat());
        let key = aes_key(&wrap.key(scope, self.blinded));
        let opened = key.open_in_place(zero_nonce(), Aad::empty(), &mut both);
        let opened = opened.map_err(|_| OpenError)?;
        <[u8; 32]>::try_from(&*opened).map_err(|_| OpenError)
    }
}

/// The secret of a scope, with the levels above it. A holder of job keys for a prefix has one, and an owner
/// has the one without levels.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scope {
    above: Vec<Level>,
    secret: ScopeSecret,
}

impl Scope {
    /// The scope of all jobs of an owner.
    pub(crate) fn of_owner(seed: &[u8; 32]) -> Self {
        Self {
            above: Vec::new(),
            secret: ScopeSecret::of_owner(seed),
        }
    }

    /// The scope of all jobs below a name.
    pub(crate) fn below(&self, name: &JobId) -> Self {
        let mut above = self.above.clone();
        let secret = self.secret.descend(name.components(), &mut above);
        Self { above, secret }
    }

    /// Secret and path of a job of this scope; `None` if its name has too few components. The caller has to
    /// make sure that the name begins with the scope's.
    pub(crate) fn job(&self, job: &JobId) -> Option<(JobSecret, Path)> {
        let rest: Vec<&str> = job.components().skip(self.above.len()).collect();
        self.secret.finish(&rest, self.above.clone())
    }

    /// The secret of the job with this path.
    pub(crate) fn find(&self, path: &Path) -> Result<JobSecret, OpenError> {
        let rest = path.0.get(self.above.len()..).ok_or(OpenError)?;
        self.secret.find(rest)
    }

    /// Number of components of the scope's name.
    pub(crate) const fn depth(&self) -> usize {
        self.above.len()
    }

    /// Whether the secret belongs to the last level, and the levels to the tag.
    pub(crate) fn has_tag(&self, owner: OwnerId, tag: JobTag) -> bool {
        let blinded: Vec<Blinded> = self.above.iter().map(|level| level.blinded).collect();
        let depth = blinded.len();
        (1..JOB_COMPONENTS_MAX).contains(&depth)
            && blinded.last() == Some(&self.secret.blinded())
            && tag_of(owner, &blinded) == tag
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(text: &str) -> JobId {
        text.parse().unwrap()
    }

    const OWNER: OwnerId = OwnerId([7; 32]);

    fn all() -> Scope {
        Scope::of_owner(&[9; 32])
    }

    #[test]
    fn an_owner_and_every_scope_above_find_a_jobs_secret_by_its_path() {
        let (secret, path) = all().job(&job("a/b/c")).unwrap();
        assert_eq!(path.depth(), 3);
        let below = |name: &str| all().below(&job(name));
        for scope in [all(), below("a"), below("a/b")] {
            assert!(scope.find(&path) == Ok(secret.clone()));
            assert!(scope.job(&job("a/b/c")).unwrap() == (secret.clone(), path.clone()));
        }
        for scope in [
            below("b"),
            below("a/c"),
            below("a/b/c"),
            Scope::of_owner(&[8; 32]),
        ] {
            assert!(scope.find(&path).is_err());
        }
    }

    #[test]
    fn a_scope_has_nothing_of_the_job_of_its_own_name() {
        let (secret, path) = all().job(&job("a/b")).unwrap();
        let scope = all().below(&job("a/b"));
        assert!(scope.secret.0 != secret.0);
        assert!(scope.find(&path).is_err() && scope.job(&job("a/b")).is_none());
        // Both have the same tag, since they have the same name.
        assert!(scope.has_tag(OWNER, tag_of(OWNER, &path.blinded())));
        assert!(!scope.has_tag(OWNER, JobTag([0; 32])));
    }

    #[test]
    fn hosts_see_what_lies_below_a_prefix_by_blinded_components() {
        let path = all().job(&job("a/b/c")).unwrap().1.blinded();
        let tag = tag_of(OWNER, &path);
        let prefix = tag_of(OWNER, &path[..2]);
        assert_eq!(rest_below(OWNER, prefix, &path), Some(&path[2..]));
        assert_eq!(
            rest_below(OWNER, tag_of(OWNER, &path[..1]), &path),
            Some(&path[1..])
        );
        let other = all().job(&job("a/x/c")).unwrap().1.blinded();
        assert_eq!(rest_below(OWNER, prefix, &other), None);
        assert_eq!(rest_below(OWNER, tag, &path), None);
        assert!(tag_of(OwnerId([6; 32]), &path) != tag, "another owner");
    }

    #[test]
    fn a_path_that_was_changed_leads_nowhere() {
        let (_, path) = all().job(&job("a/b")).unwrap();
        for level in 0..2 {
            for part in 0..3 {
                let mut bad = path.clone();
                match part {
                    0 => bad.0[level].blinded.0[3] ^= 1,
                    1 => bad.0[level].sealed[3] ^= 1,
                    _ => bad.0[level].tag[3] ^= 1,
                }
                assert!(all().find(&bad).is_err());
            }
        }
        let swapped = Path(vec![path.0[1], path.0[0]]);
        assert!(all().find(&swapped).is_err());
    }

    proptest! {
        #[test]
        fn different_names_have_different_tags_and_secrets(
            a in "[a-c]{1,2}(/[a-c]{1,2}){1,3}", b in "[a-c]{1,2}(/[a-c]{1,2}){1,3}",
        ) {
            let (one, first) = all().job(&job(&a)).unwrap();
            let (two, second) = all().job(&job(&b)).unwrap();
            let same = a == b;
            prop_assert_eq!(one == two, same);
            let first = first.blinded();
            let second = second.blinded();
            prop_assert_eq!(tag_of(OWNER, &first) == tag_of(OWNER, &second), same);
        }
    }
}
