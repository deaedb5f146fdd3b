//! Invalid content in the place of a metadata file: a clear error, no panic, no hang.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use drakkar_metadata::read::{ErrorClass, ReadError};
use drakkar_metadata::{MAX_VALUES, Query, decode, validate};
use rstest::rstest;
use rustix::fs::{CWD, Mode, mkfifoat};

use crate::support::{CLAIMS, KEP, TEMPLATES, Tree, claim_path, device_names, file, metadata, within};

const LIMIT: Duration = Duration::from_secs(10);

fn path() -> String {
    claim_path("c", "r", "a.x")
}

fn query() -> Query {
    "c/r".parse().unwrap()
}

/// Returns the error that `read`, `read_file` and `discover` all report.
fn error_of(tree: Tree) -> ReadError {
    within(LIMIT, move || {
        let reader = tree.reader();
        let outside = tree.outside(path());
        let error = reader.read(&query()).expect_err("there is nothing to read");
        let by_path = reader.read_file(Path::new(&path())).expect_err("there is nothing to read");
        assert_eq!(by_path.to_string(), error.to_string());
        let discovery = reader.discover();
        let found = discovery.files.iter().find(|file| file.path == outside).expect("it is found");
        assert_eq!(found.content.as_ref().unwrap_err().to_string(), error.to_string());
        assert!(error.to_string().starts_with(&format!("{}: ", outside.display())), "{error}");
        error
    })
}

fn error_of_content(content: impl AsRef<[u8]>) -> ReadError {
    let tree = Tree::new();
    tree.write(path(), content);
    error_of(tree)
}

fn beta(members: &str) -> String {
    format!(r#"{{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1beta1",{members}}}"#)
}

fn attribute(value: &str) -> String {
    beta(&format!(
        r#""requests":[{{"name":"r","devices":[{{"driver":"d","pool":"p","name":"n","attributes":{{"a":{value}}}}}]}}]"#
    ))
}

#[rstest]
#[case::not_json("hello".into(), "not valid JSON")]
#[case::binary("\u{7f}ELF\u{2}\u{1}".into(), "not valid JSON")]
#[case::cut_off(beta("\"requests\":[").trim_end_matches('}').into(), "not valid JSON")]
#[case::only_white_space(" \n".into(), "no metadata document found")]
#[case::a_list("[]".into(), "expected a JSON object")]
#[case::typeless("{}".into(), "no usable apiVersion")]
#[case::wrong_type(
    beta("\"requests\":{}"),
    "metadata.resource.k8s.io/v1beta1 document does not fit its schema: .requests"
)]
#[case::number_for_a_name(beta("\"requests\":[{\"name\":1}]"), ".requests[0].name")]
#[case::unknown_versions(
    r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v7"}{"kind":"X","apiVersion":"v8"}"#.into(),
    "metadata.resource.k8s.io/v7, v8"
)]
#[case::another_kind(r#"{"kind":"Pod","apiVersion":"metadata.resource.k8s.io/v1beta1"}"#.into(), "\"Pod\"")]
#[case::broken_before_good(format!("{}{}", beta("\"requests\":7"), beta("\"requests\":[]")), ".requests")]
#[case::cut_off_before_good(format!("{{\"kind\":\"X\",\n{}", beta("\"requests\":[]")), "not valid JSON")]
#[case::too_large_a_number(attribute(r#"{"int":9223372036854775808}"#), ".requests[0].devices[0].attributes.a.int")]
#[case::too_small_a_number(attribute(r#"{"int":-9223372036854775809}"#), ".requests[0].devices[0].attributes.a.int")]
#[case::far_too_large_a_number(attribute(r#"{"ints":[1e999]}"#), ".requests[0].devices[0].attributes.a.ints[0]")]
#[case::a_fraction(attribute(r#"{"int":1.5}"#), ".requests[0].devices[0].attributes.a.int")]
#[case::a_million_brackets("[".repeat(1_000_000), "line 1")]
#[case::many_objects("{\"a\":".repeat(200_000), "not valid JSON")]
fn broken_content_is_reported_with_its_cause(#[case] content: String, #[case] problem: &str) {
    let error = error_of_content(content);
    assert_eq!(error.class(), ErrorClass::Invalid);
    let text = error.to_string();
    assert!(text.contains(problem), "{text}");
    assert!(text.len() < 1000, "{} bytes of message", text.len());
}

#[rstest]
#[case::known_field("\"requests\":@")]
#[case::known_field_further_in("\"requests\":[{\"devices\":[{\"attributes\":{\"a\":{\"ints\":@}}}]}]")]
#[case::unknown_field("\"x\":@")]
#[case::raw_json("\"metadata\":{\"managedFields\":[{\"fieldsV1\":@}]}")]
fn deep_nesting_is_refused(#[case] members: &str) {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let nested = format!("{}1{}", open.repeat(10_000), close.repeat(10_000));
        let error = error_of_content(beta(&members.replace('@', &nested)));
        assert_eq!(error.class(), ErrorClass::Invalid);
        assert!(error.to_string().contains("nested more than 100 levels deep"), "{error}");
    }
}

#[test]
fn an_attribute_with_two_values_or_none_is_decoded_and_refused_by_validation() {
    for (value, problem) in [(r#"{"int":1,"string":"x"}"#, "has 2 values (int, string)"), ("{}", "has no value")] {
        let decoded = decode(attribute(value).as_bytes()).unwrap();
        let text = validate(&decoded.metadata).unwrap_err().to_string();
        assert!(text.starts_with("requests[0].devices[0].attributes[a]: ") && text.contains(problem), "{text}");
    }
}

#[test]
fn an_empty_file_is_not_written_yet() {
    let error = error_of_content("");
    assert_eq!(error.class(), ErrorClass::NotWritten);
    assert!(error.to_string().ends_with("not written yet"), "{error}");
}

#[rstest]
#[case(100 * 1024 * 1024)]
#[case(1024 * 1024 + 1)]
#[case(1 << 42)]
fn a_huge_file_is_refused_at_once(#[case] size: u64) {
    let tree = Tree::new();
    File::create(tree.create_parent(path())).unwrap().set_len(size).unwrap();
    let start = Instant::now();
    let error = error_of(tree);
    assert!(matches!(error, ReadError::TooLarge { .. }), "{error:?}");
    assert_eq!(error.class(), ErrorClass::Invalid);
    assert!(error.to_string().contains("larger than 1 MiB"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(60), "took {:?}", start.elapsed());
}

#[test]
fn a_file_of_exactly_the_maximum_size_is_read() {
    let tree = Tree::new();
    let mut content = file(&metadata("c", "r", "a.x", &["d"]));
    content.resize(1024 * 1024, b'\n');
    tree.write(path(), content);
    assert_eq!(device_names(tree.reader().read(&query()).unwrap().devices()), ["d"]);
}

/// Empty objects would take sixty times their size in memory.
#[test]
fn a_file_with_too_many_values_is_refused() {
    let many = |count: usize| {
        let devices = vec!["{}"; count].join(",");
        format!(
            r#"{{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1alpha1","requests":[{{"name":"r","devices":[{devices}]}}]}}"#
        )
    };
    let error = error_of_content(many(MAX_VALUES));
    assert_eq!(error.class(), ErrorClass::Invalid);
    assert!(error.to_string().contains("more than 8192 objects and lists"), "{error}");
    let tree = Tree::new();
    tree.write(path(), many(MAX_VALUES / 2));
    assert_eq!(tree.reader().read(&query()).unwrap().devices().count(), MAX_VALUES / 2);
}

#[test]
fn a_search_has_a_limit_of_bytes() {
    let tree = Tree::new();
    for number in 0..12 {
        let mut content = metadata("c", "r", "a.x", &["d"]);
        content.metadata.uid = format!("uid-{number}");
        let mut content = file(&content);
        content.resize(1024 * 1024, b'\n');
        tree.write(claim_path(&format!("c{number}"), "r", "a.x"), &content);
    }
    let found = tree.reader().discover();
    assert_eq!(found.files.len(), 8);
    let [problem] = &found.problems[..] else { panic!("{:?}", found.problems) };
    assert!(problem.to_string().contains("which no container has"), "{problem}");
    assert_eq!(problem.class(), ErrorClass::Invalid);
}

#[test]
fn a_search_has_a_limit_of_bytes_in_the_early_draft() {
    let tree = Tree::new();
    for number in 0..12 {
        let mut content = format!(r#"{{"claims":[{{"claimName":"c{number}","requests":[{{"requestName":"r"}}]}}]}}"#);
        content.push_str(&"\n".repeat(1024 * 1024 - content.len()));
        let name = format!("{KEP}/a.x-00000000-0000-0000-0000-0000000000{number:02}-r.json");
        tree.write(name, content);
    }
    let found = tree.reader().discover();
    assert_eq!(found.files.len(), 8);
    assert!(matches!(&found.problems[..], [ReadError::TooMuch { .. }]), "{:?}", found.problems);
}

#[test]
fn a_directory_with_too_many_entries_is_refused() {
    let tree = Tree::new();
    let directory = tree.create_parent(path());
    let directory = directory.parent().unwrap();
    for number in 0..=10_000 {
        File::create(directory.join(format!("junk-{number}"))).unwrap();
    }
    let error = tree.reader().read(&query()).unwrap_err();
    assert!(error.to_string().contains("more than 10000 entries"), "{error}");
}

#[test]
fn a_file_about_another_request_than_its_directory_is_an_error() {
    let tree = Tree::new();
    tree.write(path(), file(&metadata("c", "other", "a.x", &["d"])));
    let error = tree.reader().read(&query()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Invalid);
    assert!(error.to_string().ends_with(r#"describes "other", not request r as its directory says"#), "{error}");
}

#[test]
fn a_directory_is_not_a_file() {
    let tree = Tree::new();
    tree.directory(path());
    let error = error_of(tree);
    assert_eq!(error.class(), ErrorClass::Invalid);
    assert!(error.to_string().ends_with("is a directory, not a file"), "{error}");
}

#[test]
fn a_fifo_is_not_a_file_and_does_not_block() {
    let tree = Tree::new();
    mkfifoat(CWD, tree.create_parent(path()), Mode::from_raw_mode(0o644)).unwrap();
    let error = error_of(tree);
    assert_eq!(error.class(), ErrorClass::Invalid);
    assert!(error.to_string().ends_with("is a FIFO, not a file"), "{error}");
}

#[test]
fn a_socket_is_not_a_file() {
    let tree = Tree::new();
    let file_path = tree.create_parent(path());
    // The path of a socket has at most 108 bytes, which this one would exceed.
    let socket = tree.root().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    fs::rename(socket, file_path).unwrap();
    let error = error_of(tree);
    assert_eq!(error.class(), ErrorClass::Invalid);
    assert!(error.to_string().ends_with("is a socket, not a file"), "{error}");
    drop(listener);
}

#[test]
fn a_dangling_link_is_not_found() {
    let tree = Tree::new();
    symlink("nowhere", tree.create_parent(path())).unwrap();
    let error = error_of(tree);
    assert_eq!(error.class(), ErrorClass::NotFound);
    assert!(error.to_string().contains("No such file"), "{error}");
}

#[test]
fn a_link_to_itself_is_unreadable() {
    let tree = Tree::new();
    let link = tree.create_parent(path());
    symlink(link.file_name().unwrap(), &link).unwrap();
    let error = error_of(tree);
    assert_eq!(error.class(), ErrorClass::Unreadable);
    assert!(error.to_string().contains("symbolic links"), "{error}");
}

#[test]
fn a_directory_that_links_to_itself_is_a_problem_and_does_not_hang() {
    let tree = Tree::new();
    tree.write(path(), file(&metadata("c", "r", "a.x", &["d"])));
    let link = tree.outside(format!("{CLAIMS}/loop"));
    symlink("loop", &link).unwrap();
    symlink(".", tree.outside(format!("{CLAIMS}/self"))).unwrap();
    let discovery = within(LIMIT, move || (tree.reader().discover(), tree)).0;
    assert!(discovery.files.iter().any(|file| file.content.is_ok()));
    assert!(discovery.problems.iter().any(|problem| problem.to_string().contains(&link.display().to_string())));
}

/// Returns whether file modes do not apply to this process, because it is root.
fn is_privileged(tree: &Tree) -> bool {
    let locked = tree.write("/locked", "");
    fs::set_permissions(&locked, Permissions::from_mode(0o000)).unwrap();
    File::open(locked).is_ok()
}

#[test]
fn a_file_without_permission_is_unreadable() {
    const AS_NOBODY: &str = "DRAKKAR_TEST_AS_NOBODY";
    let tree = Tree::new();
    if is_privileged(&tree) {
        if std::env::var_os(AS_NOBODY).is_some() {
            eprintln!("skipped: still privileged as nobody");
            return;
        }
        // Root can read every file, so the test runs itself again as nobody.
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "bad_input::a_file_without_permission_is_unreadable", "--nocapture"]);
        match again.uid(65534).gid(65534).current_dir("/").env(AS_NOBODY, "1").output() {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => eprintln!("skipped: this is root, and nobody cannot run the test: {error}"),
        }
        return;
    }
    let outside = tree.write(path(), file(&metadata("c", "r", "a.x", &["d"])));
    fs::set_permissions(&outside, Permissions::from_mode(0o000)).unwrap();
    let directory = outside.parent().unwrap().to_owned();
    let error = tree.reader().read(&query()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Unreadable);
    assert_eq!(error.to_string(), format!("{}: Permission denied (os error 13)", outside.display()));
    fs::set_permissions(&directory, Permissions::from_mode(0o000)).unwrap();
    let error = tree.reader().read(&query()).unwrap_err();
    let discovery = tree.reader().discover();
    fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(error.class(), ErrorClass::Unreadable);
    assert_eq!(error.to_string(), format!("{}: Permission denied (os error 13)", directory.display()));
    assert_eq!((discovery.files.len(), discovery.problems.len()), (0, 1));
}

/// Discovers a valid file beside a directory of this name, and returns the problems and the directory's path.
fn discover_beside(directory: &Path) -> (Vec<ReadError>, PathBuf) {
    let tree = Tree::new();
    tree.write(path(), file(&metadata("c", "r", "a.x", &["d"])));
    let hostile = tree.directory(directory);
    fs::create_dir(hostile.join("r")).unwrap();
    fs::write(hostile.join("r/a.x-metadata.json"), "broken").unwrap();
    let discovery = tree.reader().discover();
    assert_eq!(discovery.files.len(), 1, "{:?}", discovery.files);
    assert!(discovery.files[0].content.is_ok());
    assert_eq!(device_names(tree.reader().read(&query()).unwrap().complete().unwrap().devices()), ["d"]);
    (discovery.problems, hostile)
}

#[rstest]
#[case::nearly_up(b"...")]
#[case::encoded_up(b"%2e%2e")]
#[case::hidden(b".c")]
#[case::an_option(b"-rf")]
#[case::upper_case(b"Claim")]
#[case::spaces(b"a b")]
#[case::newline(b"a\nb")]
#[case::escape(b"\x1b[2J")]
#[case::not_unicode(b"\xff\xfe")]
#[case::as_long_as_can_be(&[b'c'; 255])]
fn a_directory_with_an_invalid_name_is_a_problem(#[case] name: &[u8]) {
    for parent in [CLAIMS, TEMPLATES, KEP] {
        let (problems, hostile) = discover_beside(&Path::new(parent).join(OsStr::from_bytes(name)));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].class(), ErrorClass::Invalid);
        let named = match &problems[0] {
            ReadError::Name { path, .. } | ReadError::NameNotUnicode { path } => path,
            other => panic!("{other:?}"),
        };
        assert_eq!(*named, hostile);
    }
}

#[rstest]
#[case(b"\x1b[2J\x1b]0;owned\x07")]
#[case(b"a\nerror: all is well\r")]
fn a_hostile_name_puts_no_control_characters_into_a_message(#[case] name: &[u8]) {
    let (problems, _) = discover_beside(&Path::new(CLAIMS).join(OsStr::from_bytes(name)));
    for problem in problems {
        let text = problem.to_string();
        assert!(!text.contains(char::is_control), "{text:?}");
    }
}

#[rstest]
#[case::unknown_version(r#"{"kind":"K","apiVersion":"@"}"#)]
#[case::no_kind(r#"{"apiVersion":"@"}"#)]
#[case::no_version(r#"{"kind":"K","apiVersion":"a/b/@"}"#)]
#[case::wrong_kind(r#"{"kind":"@","apiVersion":"metadata.resource.k8s.io/v1beta1"}"#)]
#[case::wrong_shape(r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1beta1","requests":"@"}"#)]
#[case::wrong_shape_below_a_hostile_name(
    r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1beta1","metadata":{"labels":{"@":1}}}"#
)]
#[case::wrong_time(
    r#"{"kind":"DeviceMetadata","apiVersion":"metadata.resource.k8s.io/v1beta1","metadata":{"creationTimestamp":"@"}}"#
)]
fn hostile_content_makes_messages_neither_unsafe_nor_long(#[case] content: &str) {
    let hostile = format!("\\u001b[2J\\n{}", "x".repeat(100_000));
    let text = error_of_content(content.replace('@', &hostile)).to_string();
    assert!(!text.contains(char::is_control), "{:?}", text.chars().take(300).collect::<String>());
    assert!(text.len() < 2000, "{} bytes of message", text.len());
}

#[test]
fn a_file_whose_name_is_not_utf8_is_only_a_problem() {
    let tree = Tree::new();
    tree.write(path(), file(&metadata("c", "r", "a.x", &["d"])));
    let name = OsStr::from_bytes(b"\xff-metadata.json");
    let odd = tree.write(Path::new(CLAIMS).join("c/r").join(name), "");
    let read = tree.reader().read(&query()).unwrap();
    assert_eq!(device_names(read.devices()), ["d"]);
    assert!(matches!(&read.problems[..], [ReadError::NameNotUnicode { path }] if *path == odd), "{:?}", read.problems);
    assert_eq!(read.problems[0].class(), ErrorClass::Invalid);
}
