//! One server for all checkpoints, as a dedicated checkpoint server is: files over TCP, as they are.
//!
//! A request is `P` or `G`, the length of a name (u16), the name and, for `P`, the length of the file (u64)
//! and its bytes; the answer to `P` is one byte once the file is synced and has its name, that to `G` the
//! length and the bytes. Little-endian. Both ends are this program: nothing is checked.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

const PUT: u8 = b'P';
const GET: u8 = b'G';

/// Serves until it is killed.
///
/// # Errors
/// When it can't listen.
pub fn serve(dir: &Path, addr: SocketAddr) -> Result<()> {
    fs::create_dir_all(dir)?;
    let listener = TcpListener::bind(addr)?;
    for (number, stream) in listener.incoming().enumerate() {
        let dir = dir.to_owned();
        let stream = stream?;
        std::thread::spawn(move || {
            if let Err(cause) = answer(&dir, stream, number) {
                eprintln!("a client is gone: {cause:#}");
            }
        });
    }
    Ok(())
}

fn answer(dir: &Path, stream: TcpStream, number: usize) -> Result<()> {
    let mut from = BufReader::with_capacity(1 << 20, stream.try_clone()?);
    let mut to = stream;
    let kind = read_bytes::<1>(&mut from)?;
    let mut name = vec![0; usize::from(u16::from_le_bytes(read_bytes(&mut from)?))];
    from.read_exact(&mut name)?;
    let path = dir.join(String::from_utf8(name)?);
    if kind == [PUT] {
        let part = PathBuf::from(format!("{}.{number}", path.display()));
        let received = receive(&mut from, &part);
        if received.is_err() {
            fs::remove_file(&part)?;
            return received;
        }
        fs::rename(part, path)?;
        to.write_all(&[1])?;
        return Ok(());
    }
    send(&mut to, &path)
}

/// Sends a file; returns when the server has it on its disk.
///
/// # Errors
/// When it can't be read or sent.
pub fn put(addr: SocketAddr, name: &str, file: &Path) -> Result<()> {
    let mut stream = ask(addr, PUT, name)?;
    send(&mut stream, file)?;
    read_bytes::<1>(&mut stream).map(|_| ())
}

/// Fetches a file; returns when it is on the disk.
///
/// # Errors
/// When there is none, or it can't be written.
pub fn get(addr: SocketAddr, name: &str, out: &Path) -> Result<()> {
    let stream = ask(addr, GET, name)?;
    receive(&mut BufReader::with_capacity(1 << 20, stream), out)
}

fn ask(addr: SocketAddr, kind: u8, name: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(addr)?;
    let mut request = vec![kind];
    request.extend(u16::try_from(name.len())?.to_le_bytes());
    request.extend(name.as_bytes());
    stream.write_all(&request)?;
    Ok(stream)
}

fn send(to: &mut TcpStream, path: &Path) -> Result<()> {
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    let bytes = file.metadata()?.len();
    to.write_all(&bytes.to_le_bytes())?;
    ensure!(io::copy(&mut file, to)? == bytes, "the file changed");
    Ok(())
}

fn receive(from: &mut impl Read, path: &Path) -> Result<()> {
    let bytes = u64::from_le_bytes(read_bytes(from)?);
    let mut file = File::create(path)?;
    ensure!(
        io::copy(&mut from.take(bytes), &mut file)? == bytes,
        "cut short"
    );
    Ok(file.sync_all()?)
}

fn read_bytes<const N: usize>(from: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}
