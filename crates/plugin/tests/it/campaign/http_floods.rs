//! Floods the HTTP endpoint with connections, while probes must not fail.
//!
//! The kubelet gives a probe one second, in which others can open [`OVERTAKING`] connections at the most. The test counts these
//! instead of the second: on a busy machine neither the endpoint nor the flood gets much of the processors.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Campaign, quantiles};
use crate::support::{Node, Random, TestDriver};

/// The number of connections that the flood may open while a probe waits: more than it can open within the kubelet's default
/// timeout of one second on an idle machine.
const OVERTAKING: usize = 13_000;
/// The time after which an endpoint that does not respond is taken for hung.
const HANG: Duration = Duration::from_secs(60);
/// The time between two probes.
const PROBE_PERIOD: Duration = Duration::from_millis(20);
/// The maximum number of open connections of a flood; more have no further effect.
const HELD: usize = 1500;
/// The number of threads that open connections. One can open some ten thousand in a second. The endpoint has one thread too: on
/// a machine whose CPUs are all busy, several floods would get several times its share.
const FLOODS: u64 = 1;

/// How a flood uses a connection.
#[derive(Clone, Copy)]
enum Attack {
    /// Sends nothing.
    Idle,
    /// Sends half of a request.
    Half,
    /// Requests the largest page and does not read the response.
    SlowReader,
    /// Sends something other than HTTP.
    Garbage,
    /// Closes the connection immediately.
    Close,
    /// Sends a request like a probe, and does not wait for the response.
    Request,
}

const ATTACKS: [Attack; 6] =
    [Attack::Idle, Attack::Half, Attack::SlowReader, Attack::Garbage, Attack::Close, Attack::Request];

#[tokio::test]
async fn no_probe_fails_while_the_http_endpoint_is_flooded() {
    let campaign = Campaign::new("http_floods");
    let node = Node::default();
    let builder = node.builder().http_endpoint("127.0.0.1:0".parse().unwrap());
    let helper = builder.start(TestDriver::default()).await.unwrap();
    let address = helper.http_address().unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let opened = Arc::new(AtomicUsize::new(0));
    let floods: Vec<_> = (0..FLOODS)
        .map(|number| {
            let ends = ends.clone();
            let opened = opened.clone();
            let random = Random(campaign.seed ^ number);
            thread::spawn(move || flood(address, random, &ends, &opened))
        })
        .collect();

    let started = Instant::now();
    let mut times = Vec::new();
    let mut failures = Vec::new();
    let mut most_overtaking = 0;
    while campaign.has_next(times.len(), 100) {
        // Not on the runtime, where it would measure the test's own tasks.
        let probed = Instant::now();
        let before = opened.load(Ordering::Relaxed);
        let probe = tokio::task::spawn_blocking(move || probe(address)).await.unwrap();
        let overtaking = opened.load(Ordering::Relaxed) - before;
        times.push(probed.elapsed());
        most_overtaking = most_overtaking.max(overtaking);
        if let Err(error) = probe {
            failures.push(format!("probe {} after {:?}: {error}", times.len(), probed.elapsed()));
        } else if overtaking > OVERTAKING {
            failures.push(format!("probe {}: {overtaking} connections were opened while it waited", times.len()));
        }
        tokio::time::sleep(PROBE_PERIOD).await;
    }
    ends.store(true, Ordering::Relaxed);
    for flood in floods {
        flood.join().unwrap();
    }
    let opened = opened.load(Ordering::Relaxed);
    let rate = opened as f64 / started.elapsed().as_secs_f64();
    let probes = times.len();
    let failed = failures.len();
    let times = quantiles(times);
    campaign.report(&format!(
        "{probes} probes, {failed} failed, {times}, {opened} connections ({rate:.0} a second, at most \
         {most_overtaking} during a probe)"
    ));
    assert!(failures.is_empty(), "{failures:#?}");
    helper.stop().await.unwrap();
}

/// Sends a probe as the kubelet does, without its retries.
fn probe(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, HANG)?;
    stream.set_read_timeout(Some(HANG))?;
    stream.set_write_timeout(Some(HANG))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    if response.starts_with("HTTP/1.1 200 OK") { Ok(()) } else { Err(io::Error::other(response)) }
}

/// Opens connections with attacks in random order.
fn flood(address: SocketAddr, mut random: Random, ends: &AtomicBool, opened: &AtomicUsize) {
    let mut held: Vec<TcpStream> = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let attack = ATTACKS[random.below(ATTACKS.len())];
        for _ in 0..1 + random.below(3000) {
            if ends.load(Ordering::Relaxed) {
                break;
            }
            // The test's own ports and file descriptors can run out, which does not count as an effect on the endpoint.
            let Ok(mut stream) = TcpStream::connect(address) else { break };
            opened.fetch_add(1, Ordering::Relaxed);
            let request: &[u8] = match attack {
                Attack::Idle | Attack::Close => b"",
                Attack::Half => b"GET /healthz HTTP/1.1\r\nHo",
                Attack::SlowReader => b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
                Attack::Garbage => b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n\0\0\0\xff",
                Attack::Request => b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n",
            };
            // The endpoint may have closed it already.
            stream.write_all(request).ok();
            if !matches!(attack, Attack::Close) {
                held.push(stream);
            }
            if held.len() > HELD {
                let index = random.below(held.len());
                held.swap_remove(index);
            }
        }
    }
}
