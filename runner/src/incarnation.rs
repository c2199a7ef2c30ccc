//! What distinguishes one incarnation of a job from the others.

/// Label with the mark of the incarnation that saved a checkpoint. A start after a kill knows by it a version
/// that this machine committed and had no time to note.
pub(super) const INCARNATION: &str = "ckpt.incarnation";

/// A random mark, by which the processes or the checkpoints of one incarnation of a job are recognised.
pub(super) fn mark() -> std::io::Result<String> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| std::io::Error::other("no random numbers"))?;
    Ok(codec::hex::encode(&bytes))
}
