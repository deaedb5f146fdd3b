//! The lower bound of a prepare: its system calls, and nothing else.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use crate::cluster::Cluster;
use crate::table::{Table, median};
use crate::{memory_directory, micros};

/// The name of the lower bound in tables.
pub const FLOOR: &str = "floor";

/// Content of about the size of a metadata file or a CDI spec.
const FILE: &[u8] = &[b'x'; 700];
/// About the size of a call and of its answer.
const CALL: usize = 200;

/// Measures the files, a socket round trip and the GET of a claim.
pub fn measure(calls: u64, disk: &Path, cluster: &Cluster, table: &mut Table) {
    files(calls, &memory_directory(), false, ("files of a prepare", "files of an unprepare"), table);
    files(calls, disk, false, ("files of a prepare, on the disk", "files of an unprepare, on the disk"), table);
    let synced = ("files of a prepare, on the disk and synced", "files of an unprepare after that");
    files(calls, disk, true, synced, table);
    echo(calls, table);
    get(calls, cluster, table);
}

/// Creates and removes the files of a claim: a directory with a metadata file and a record, and a spec that is renamed.
fn files(calls: u64, directory: &Path, sync: bool, (made, removed): (&str, &str), table: &mut Table) {
    let root = tempfile::tempdir_in(directory).unwrap();
    let claim = root.path().join("claim");
    let request = claim.join("request");
    let spec = root.path().join("spec");
    let staged = root.path().join("staged");
    let write = |path: &Path| {
        let mut file = fs::File::create(path).unwrap();
        file.write_all(FILE).unwrap();
        if sync {
            file.sync_all().unwrap();
        }
    };
    let mut prepares = Vec::new();
    let mut unprepares = Vec::new();
    for _ in 0..calls {
        let begin = Instant::now();
        fs::create_dir(&claim).unwrap();
        fs::create_dir(&request).unwrap();
        write(&request.join("metadata.json"));
        write(&claim.join("record"));
        write(&staged);
        fs::rename(&staged, &spec).unwrap();
        prepares.push(begin.elapsed());
        let begin = Instant::now();
        fs::remove_file(&spec).unwrap();
        fs::remove_file(claim.join("record")).unwrap();
        fs::remove_file(request.join("metadata.json")).unwrap();
        fs::remove_dir(&request).unwrap();
        fs::remove_dir(&claim).unwrap();
        unprepares.push(begin.elapsed());
    }
    table.add_cost(FLOOR, made, "us", micros(median(&mut prepares)));
    table.add_cost(FLOOR, removed, "us", micros(median(&mut unprepares)));
}

/// A round trip through a unix socket to another thread.
fn echo(calls: u64, table: &mut Table) {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; CALL];
        while there.read_exact(&mut bytes).is_ok() {
            there.write_all(&bytes).unwrap();
        }
    });
    let mut bytes = [1; CALL];
    let mut times = Vec::new();
    for _ in 0..calls {
        let begin = Instant::now();
        here.write_all(&bytes).unwrap();
        here.read_exact(&mut bytes).unwrap();
        times.push(begin.elapsed());
    }
    drop(here);
    echo.join().unwrap();
    table.add_cost(FLOOR, "there and back through a unix socket", "us", micros(median(&mut times)));
}

/// The GET of a claim from the API server, over one connection.
fn get(calls: u64, cluster: &Cluster, table: &mut Table) {
    let (port, request) = cluster.bare_get(0);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut answer = vec![0; 16 * 1024];
    let mut times = Vec::new();
    for _ in 0..calls {
        let begin = Instant::now();
        stream.write_all(request.as_bytes()).unwrap();
        let mut length = 0;
        while !answer[..length].ends_with(b"}}") {
            let more = stream.read(&mut answer[length..]).unwrap();
            assert!(more > 0, "the API server has closed the connection");
            length += more;
        }
        times.push(begin.elapsed());
    }
    table.add_cost(FLOOR, "a claim from the API server", "us", micros(median(&mut times)));
}
