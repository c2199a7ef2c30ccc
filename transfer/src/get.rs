//! Reads blocks of shards. Each block is verified against the signed manifest.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use codec::ShardIndex;
use codec::geometry::{page_count, page_of, page_rows};
use codec::manifest::Public;
use codec::shard_file::{BlockEntry, ENTRY_BYTES, Outline, PAGES_MAX, Page};
use codec::{PageHash, ShardRoot};
use protocol::net::read_exact;
use protocol::wire::Code;
use protocol::wire::limits::REQUEST_TIMEOUT;
use protocol::wire::message::{Request, Response, RowRun, ShardName};

use super::hosts::{Hosts, unexpected};
use crate::{Fault, HostIndex};

/// Most pages of the table that are kept for each shard. A restore reads them in ascending order.
const PAGES_KEPT: usize = 2;

/// Reads the blocks of one checkpoint.
#[derive(Clone, Debug)]
pub struct BlockReader {
    hosts: Hosts,
    public: Arc<Public>,
    /// The tables by shard. They were verified, so it does not matter which host sent them.
    tables: Arc<Vec<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    outline: tokio::sync::Mutex<Option<Arc<Outline>>>,
    /// Locked while a page is fetched, so that requests for rows of the same page fetch it once.
    pages: tokio::sync::Mutex<BTreeMap<u64, Arc<Page>>>,
}

impl BlockReader {
    /// A reader for the checkpoint whose manifest has this public part.
    pub fn new(hosts: Hosts, public: Public) -> Self {
        let tables = public.redundancy.shards().map(|_| Table::default());
        Self {
            hosts,
            tables: Arc::new(tables.collect()),
            public: Arc::new(public),
        }
    }

    /// Reads the blocks of `rows`, which ascend, and passes each verified block to `on_block`.
    ///
    /// # Errors
    /// When the host fails, or a byte is wrong.
    pub async fn blocks(
        &self,
        shard: ShardIndex,
        host: HostIndex,
        rows: impl IntoIterator<Item = u64>,
        mut on_block: impl FnMut(u64, Bytes),
    ) -> Result<(), Fault> {
        let entries = self.entries(shard, host, rows).await?;
        let mut left = entries.as_slice();
        while !left.is_empty() {
            let run = first_run(left);
            let one_by_one = self.hosts.without_row_runs().contains(&host);
            let count = if one_by_one { run } else { left.len() };
            let (now, later) = left.split_at(count);
            match self.request_rows(shard, host, now, &mut on_block).await {
                Ok(()) => left = later,
                // Its program is older than `RowRuns`.
                Err(Fault::Refused { code, .. }) if code == Code::BadRequest && run < count => {
                    self.hosts.without_row_runs().insert(host);
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
    }

    /// What the shard's table states of the blocks of `rows`, which ascend.
    ///
    /// # Errors
    /// When the host fails, or a byte is wrong.
    pub async fn entries(
        &self,
        shard: ShardIndex,
        host: HostIndex,
        rows: impl IntoIterator<Item = u64>,
    ) -> Result<Vec<(u64, BlockEntry)>, Fault> {
        let mut entries = Vec::new();
        for row in rows {
            let (page, place) = page_of(row);
            let page = self.page(shard, host, page).await?;
            let entry = page.entries().get(place).copied();
            entries.push((row, entry.ok_or_else(|| unexpected("rows"))?));
        }
        Ok(entries)
    }

    /// Reads the blocks of these rows with one request.
    async fn request_rows(
        &self,
        shard: ShardIndex,
        host: HostIndex,
        rows: &[(u64, BlockEntry)],
        on_block: &mut impl FnMut(u64, Bytes),
    ) -> Result<(), Fault> {
        let expected: u64 = rows.iter().map(|(_, entry)| u64::from(entry.len)).sum();
        self.hosts
            .received(usize::try_from(expected).unwrap_or(usize::MAX))
            .await;
        let shard = self.name(shard);
        let message = match runs(rows)[..] {
            [RowRun { first, count }] => Request::Rows {
                shard,
                first,
                count,
            },
            ref runs => Request::RowRuns {
                shard,
                runs: runs.to_vec(),
            },
        };
        let (response, mut exchange) = self.hosts.request(host, &message, REQUEST_TIMEOUT).await?;
        if response != (Response::Rows { bytes: expected }) {
            return Err(Fault::Lied("length of rows".into()));
        }
        for (row, entry) in rows {
            let block = read_exact(&mut exchange.recv, entry.len as usize).await?;
            if !entry.matches(&block) {
                return Err(Fault::Lied(format!("block of row {row}")));
            }
            on_block(*row, block);
        }
        Ok(())
    }

    /// The outline of a shard, verified against the shard's root.
    ///
    /// # Errors
    /// When the host fails, or sends a wrong outline.
    pub async fn outline(&self, shard: ShardIndex, host: HostIndex) -> Result<Arc<Outline>, Fault> {
        let table = self.table(shard)?;
        let mut slot = table.outline.lock().await;
        if let Some(outline) = slot.as_ref() {
            return Ok(Arc::clone(outline));
        }
        let outline = Arc::new(self.fetch_outline(shard, host).await?);
        Ok(Arc::clone(slot.insert(outline)))
    }

    /// Fetches the outline from this host, even if it is known already.
    ///
    /// # Errors
    /// When the host fails, or sends a wrong outline.
    pub async fn fetch_outline(
        &self,
        shard: ShardIndex,
        host: HostIndex,
    ) -> Result<Outline, Fault> {
        let (identity, root) = self
            .public
            .shard(shard)
            .unwrap_or_else(|| unreachable!("a manifest has a root for each of its shards"));
        let message = Request::Outline(self.name(shard));
        let (response, mut exchange) = self.hosts.request(host, &message, REQUEST_TIMEOUT).await?;
        let Response::Outline {
            rows,
            block_bytes,
            pages,
        } = response
        else {
            return Err(unexpected("outline"));
        };
        if rows != self.public.rows || pages != page_count(rows) || pages > PAGES_MAX {
            return Err(Fault::Lied("number of rows".into()));
        }
        let bytes = read_exact(&mut exchange.recv, pages as usize * 32).await?;
        let pages = bytes.as_chunks::<32>().0.iter().map(|hash| PageHash(*hash));
        let outline = Outline {
            rows,
            block_bytes,
            pages: pages.collect(),
        };
        check_root(&outline, &identity, root)?;
        Ok(outline)
    }

    async fn page(
        &self,
        shard: ShardIndex,
        host: HostIndex,
        number: u64,
    ) -> Result<Arc<Page>, Fault> {
        let outline = self.outline(shard, host).await?;
        let table = self.table(shard)?;
        let mut pages = table.pages.lock().await;
        if let Some(page) = pages.get(&number) {
            return Ok(Arc::clone(page));
        }
        let rows = page_rows(outline.rows, number);
        let at = usize::try_from(number).ok();
        let hash = at.and_then(|at| outline.pages.get(at));
        let hash = *hash.ok_or_else(|| unexpected("page"))?;
        let message = Request::Page {
            shard: self.name(shard),
            page: number,
        };
        let (response, mut exchange) = self.hosts.request(host, &message, REQUEST_TIMEOUT).await?;
        let len = rows as usize * ENTRY_BYTES;
        if !matches!(response, Response::Page { bytes } if bytes as usize == len) {
            return Err(Fault::Lied(format!("length of page {number}")));
        }
        let bytes = read_exact(&mut exchange.recv, len).await?;
        let page = Page::parse(&bytes, rows, hash)
            .map_err(|cause| Fault::Lied(format!("page {number}: {cause}")))?;
        let page = Arc::new(page);
        pages.insert(number, Arc::clone(&page));
        if pages.len() > PAGES_KEPT {
            pages.pop_first();
        }
        Ok(page)
    }

    fn table(&self, shard: ShardIndex) -> Result<&Table, Fault> {
        self.tables
            .get(shard.at())
            .ok_or_else(|| unexpected("shard"))
    }

    fn name(&self, shard: ShardIndex) -> ShardName {
        ShardName {
            checkpoint: self.public.checkpoint,
            shard: shard.number(),
        }
    }
}

/// How many of these rows, from the first on, follow each other.
fn first_run(rows: &[(u64, BlockEntry)]) -> usize {
    let first = rows.first().map_or(0, |(row, _)| *row);
    let numbers = rows.iter().map(|(row, _)| *row).zip(first..);
    numbers.take_while(|(row, next)| row == next).count()
}

fn runs(rows: &[(u64, BlockEntry)]) -> Vec<RowRun> {
    let runs = rows.chunk_by(|one, next| one.0 + 1 == next.0);
    let run = |run: &[(u64, BlockEntry)]| {
        let count = u32::try_from(run.len()).unwrap_or(u32::MAX);
        run.first().map(|(first, _)| RowRun {
            first: *first,
            count,
        })
    };
    runs.filter_map(run).collect()
}

fn check_root(
    outline: &Outline,
    identity: &codec::shard_file::ShardIdentity,
    root: ShardRoot,
) -> Result<(), Fault> {
    outline
        .verify(identity, root)
        .map_err(|cause| Fault::Lied(cause.to_string()))
}
