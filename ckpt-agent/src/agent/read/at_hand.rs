//! What files of this machine have already of an image that is restored: the hashes of its pieces are read, and the files
//! compared with them.

use crate::agent::read::hashes::base_of;
use crate::agent::read::restore::{Attempt, Image};
use crate::image::Target;
use crate::image::at_hand::{FilesAtHand, Places};

impl Attempt<'_> {
    /// The files with a part of the image; `None` if there are none, or if that can't be known: then all is fetched.
    pub(super) async fn at_hand(&self, image: &Image, target: &Target) -> Option<FilesAtHand> {
        let summary = &image.summary;
        let chain = summary.tail.chain.as_ref()?;
        let is_whole = image.pick.is_none() && *target != Target::Stdout;
        if !is_whole {
            return None;
        }
        let hashes_dir = self.agent.hashes_dir(self.agent.hash_place(summary)?);
        let index = image.index.clone();
        let target = target.clone();
        let others = self.paths_at_hand(image);
        let options = self.sink_options();
        let looking = tokio::task::spawn_blocking(move || {
            let places = Places::of(&index, &target, &others, options);
            places.map(|places| (places, index))
        });
        let (places, index) = looking.await.ok()??;
        let own = image.sources.first()?;
        let read = self.agent.read_hashes(&own.known, summary, &own.reader);
        let hashes = match read.await {
            Ok(hashes) => hashes,
            Err(stop) => {
                tracing::warn!(?stop, "the hashes of pieces can't be read; all is fetched");
                return None;
            }
        };
        let key = chain.pieces_key.clone();
        let comparing = tokio::task::spawn_blocking(move || {
            let base = base_of(&index, &hashes, &key, hashes_dir);
            drop(hashes);
            match base {
                Ok(base) => places.compare(&index, &base),
                Err(cause) => {
                    tracing::warn!(%cause, "the files here can't be compared; all is fetched");
                    None
                }
            }
        });
        comparing.await.ok()?
    }
}
