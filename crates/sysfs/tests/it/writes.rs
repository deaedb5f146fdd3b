//! Writes to sysfs, and those that hang.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drakkar_sysfs::{Kernel, Roots, Sysfs, WriteError};
use rstest::rstest;

use crate::support::{Tree, address};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

/// A kernel whose writes hang until they are released with a result.
#[derive(Debug)]
struct Hanging {
    release: Mutex<Receiver<io::Result<()>>>,
    written: Mutex<Vec<PathBuf>>,
}

impl Hanging {
    fn new() -> (Arc<Self>, Sender<io::Result<()>>) {
        let (sender, receiver) = channel();
        (Arc::new(Self { release: Mutex::new(receiver), written: Mutex::default() }), sender)
    }
}

impl Kernel for Hanging {
    fn write(&self, path: &Path, _: &[u8]) -> io::Result<()> {
        self.written.lock().unwrap().push(path.to_owned());
        if path.ends_with("unbind") {
            return self.release.lock().unwrap().recv().unwrap();
        }
        Ok(())
    }
}

/// Waits for a condition that another thread brings about.
fn eventually(condition: impl Fn() -> bool) {
    let until = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < until, "the condition did not come true");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_write_reaches_the_file_and_replaces_nothing_else() {
    let tree = Tree::new();
    tree.file("sys/value", "0123456789");
    let device = address("0000:01:00.0");
    tree.sysfs().write(&device, &tree.path("sys/value"), "abc").unwrap();
    let content = std::fs::read_to_string(tree.path("sys/value")).unwrap();
    assert_eq!(content, "abc3456789", "the file is not truncated: a file of sysfs has no length");
}

#[test]
fn a_missing_file_is_not_created_and_the_error_names_device_file_and_value() {
    let tree = Tree::new();
    let error = tree.sysfs().write(&address("0000:01:00.0"), &tree.path("sys/none"), "vfio-pci").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(2));
    let text = error.to_string();
    assert!(
        text.starts_with("0000:01:00.0: write \"vfio-pci\" to ") && text.contains("sys/none: No such file"),
        "{text}"
    );
    assert!(!tree.path("sys/none").exists());
}

#[rstest]
#[case::success(Ok(()))]
#[case::failure(Err(io::Error::from_raw_os_error(16)))]
fn a_hung_write_blocks_its_device_alone_until_it_returns(#[case] outcome: io::Result<()>) {
    let (kernel, release) = Hanging::new();
    let sysfs = Sysfs::with_kernel(Roots::default(), kernel.clone()).with_write_timeout(SHORT);
    // What must succeed has time: the machine may be busy.
    let clone = sysfs.clone().with_write_timeout(LONG);
    let stuck = address("0000:01:00.0");
    let error = sysfs.write(&stuck, Path::new("/drivers/e1000e/unbind"), "0000:01:00.0").unwrap_err();
    assert!(error.is_hung(), "{error}");
    assert!(error.to_string().contains("/drivers/e1000e/unbind: the kernel has not returned for 50ms"), "{error}");

    let error = clone.write(&stuck, Path::new("/drivers/vfio-pci/bind"), "0000:01:00.0").unwrap_err();
    assert!(matches!(&error, WriteError::Blocked { device, .. } if device == "0000:01:00.0"), "{error}");
    assert!(error.to_string().contains("\"0000:01:00.0\" to /drivers/e1000e/unbind has not returned"), "{error}");
    assert_eq!(kernel.written.lock().unwrap().len(), 1, "a refused write does not reach the kernel");
    assert_eq!(sysfs.hung_writes().len(), 1);

    clone.write(&address("0000:02:00.0"), Path::new("/drivers/vfio-pci/bind"), "0000:02:00.0").unwrap();

    release.send(outcome).unwrap();
    eventually(|| sysfs.hung_writes().is_empty());
    clone.write(&stuck, Path::new("/drivers/vfio-pci/bind"), "0000:01:00.0").unwrap();
}

#[test]
fn a_write_that_returns_in_time_gives_the_kernels_answer() {
    let (kernel, release) = Hanging::new();
    let sysfs = Sysfs::with_kernel(Roots::default(), kernel).with_write_timeout(LONG);
    release.send(Err(io::Error::from_raw_os_error(16))).unwrap();
    let error = sysfs.write(&"device", Path::new("/unbind"), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(16));
    assert!(sysfs.hung_writes().is_empty());
}

#[test]
fn two_hung_writes_of_one_device_block_it_until_both_have_returned() {
    let (kernel, release) = Hanging::new();
    let sysfs = Sysfs::with_kernel(Roots::default(), kernel.clone()).with_write_timeout(SHORT);
    std::thread::scope(|scope| {
        let kernel = &kernel;
        let write = || {
            // Both have begun before one of them hangs.
            let error =
                sysfs.clone().with_write_timeout(4 * SHORT).write(&"device", Path::new("/unbind"), "x").unwrap_err();
            error.is_hung()
        };
        let first = scope.spawn(write);
        let second = scope.spawn(write);
        let both = [first.join().unwrap(), second.join().unwrap()];
        // On a busy machine the second may begin after the first has hung, and is refused then.
        let hung = both.iter().filter(|hung| **hung).count();
        assert_eq!(hung, sysfs.hung_writes().len());
        for returned in 1..=hung {
            release.send(Ok(())).unwrap();
            eventually(|| sysfs.hung_writes().len() == hung - returned);
        }
        assert_eq!(kernel.written.lock().unwrap().len(), hung);
    });
    sysfs.with_write_timeout(LONG).write(&"device", Path::new("/bind"), "x").unwrap();
}

#[derive(Debug)]
struct Panicking;

impl Kernel for Panicking {
    fn write(&self, _: &Path, _: &[u8]) -> io::Result<()> {
        panic!("on purpose");
    }
}

#[test]
fn a_stand_in_that_panics_is_a_failed_write() {
    let sysfs = Sysfs::with_kernel(Roots::default(), Arc::new(Panicking));
    let error = sysfs.write(&"device", Path::new("/bind"), "x").unwrap_err();
    assert!(matches!(error, WriteError::Refused { .. }), "{error}");
}
