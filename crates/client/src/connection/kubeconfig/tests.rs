use std::ffi::OsString;

use secrecy::ExposeSecret as _;

use super::*;

const CONTEXT: &str = "contexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n";
const CLUSTER: &str = "clusters: [{name: c, cluster: {server: 'http://first:1'}}]\n";

/// Writes files, and returns their list in a variable.
fn write(directory: &Path, files: &[(&str, &[u8])]) -> PathBuf {
    let paths = files.iter().map(|(name, content)| {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    });
    env::join_paths(paths).map(OsString::into).unwrap()
}

#[test]
fn paths_are_relative_to_their_file() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let text = "
clusters:
- {name: a, cluster: {certificate-authority: ca.crt}}
- {name: b, cluster: {certificate-authority: /etc/ca.crt}}
users:
- {name: a, user: {client-certificate: pki/tls.crt, client-key: ../tls.key, tokenFile: token, exec: {command: ./plugin}}}
- {name: b, user: {tokenFile: '', exec: {command: plugin}}}
";
    let config = read(&write(root, &[("home/config", text.as_bytes())])).unwrap();
    let cluster = |index: usize| config.clusters[index].cluster.clone().unwrap().certificate_authority.unwrap();
    let in_home = |path: &str| root.join("home").join(path).to_str().unwrap().to_owned();
    assert_eq!((cluster(0), cluster(1)), (in_home("ca.crt"), "/etc/ca.crt".to_owned()));
    let user = config.auth_infos[0].auth_info.clone().unwrap();
    let paths = [user.client_certificate, user.client_key, user.token_file, user.exec.unwrap().command];
    assert_eq!(paths.map(Option::unwrap), ["pki/tls.crt", "../tls.key", "token", "./plugin"].map(in_home));
    let user = config.auth_infos[1].auth_info.clone().unwrap();
    assert_eq!((user.token_file.unwrap(), user.exec.unwrap().command.unwrap()), (String::new(), "plugin".to_owned()));
}

#[tokio::test]
async fn the_first_file_or_document_that_sets_a_value_wins() {
    let directory = tempfile::tempdir().unwrap();
    let first = format!("{CONTEXT}---\n# Nothing.\n---\n{CLUSTER}");
    let second = "
current-context: y
clusters: [{name: c, cluster: {server: 'http://second:1'}}, {name: d, cluster: {}}]
users: [{name: u, user: {token: secret}}]
";
    let list = write(directory.path(), &[("a", first.as_bytes()), ("b", second.as_bytes())]);
    assert_eq!(read(&list).unwrap().clusters.len(), 2);
    let config = load(&list).await.unwrap();
    assert_eq!(config.cluster_url, "http://first:1");
    assert_eq!(config.auth_info.token.unwrap().expose_secret(), "secret");
}

#[tokio::test]
async fn byte_order_marks_tell_the_encoding() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!("{CONTEXT}{CLUSTER}users: [{{name: u, user: {{username: Jürgen}}}}]");
    let utf16 =
        |bytes: fn(u16) -> [u8; 2]| format!("\u{feff}{text}").encode_utf16().flat_map(bytes).collect::<Vec<_>>();
    let utf8 = format!("\u{feff}{text}").into_bytes();
    for bytes in [text.clone().into_bytes(), utf8, utf16(u16::to_le_bytes), utf16(u16::to_be_bytes)] {
        let list = write(directory.path(), &[("config", &bytes)]);
        let config = load(&list).await.unwrap();
        assert_eq!((config.cluster_url.port_u16(), config.auth_info.username.as_deref()), (Some(1), Some("Jürgen")));
    }
    for bytes in [&b"\xFF\xFEa"[..], b"\xFE\xFF\xD8\x00", b"a: \xFF", b"\xEF\xBB\xBF\xFF"] {
        let list = write(directory.path(), &[("config", bytes)]);
        let error = read(&list).unwrap_err();
        assert!(matches!(&error, KubeconfigError::Read(_)) && error.to_string().contains("invalid utf-"), "{error}");
    }
}

#[test]
fn nulls_and_keys_that_are_no_strings_are_accepted() {
    let directory = tempfile::tempdir().unwrap();
    let text = "{users: ~, clusters: null, contexts: , current-context: x, preferences: {1: 2}, true: {}}";
    let config = read(&write(directory.path(), &[("config", text.as_bytes())])).unwrap();
    assert_eq!((config.current_context.as_deref(), config.clusters.len()), (Some("x"), 0));
    let empty = read(&write(directory.path(), &[("config", b"# Nothing.\n")])).unwrap();
    assert!(empty.current_context.is_none());
}

#[test]
fn booleans_are_read_where_one_is_expected() {
    let directory = tempfile::tempdir().unwrap();
    let text = "
current-context: on
clusters: [{name: no, cluster: {insecure-skip-tls-verify: yes, disable-compression: off}}]
users: [{name: y, user: {token: 'true', exec: {provideClusterInfo: true}}}]
";
    let config = read(&write(directory.path(), &[("config", text.as_bytes())])).unwrap();
    let cluster = config.clusters[0].cluster.clone().unwrap();
    assert_eq!((cluster.insecure_skip_tls_verify, cluster.disable_compression), (Some(true), Some(false)));
    assert_eq!((config.current_context.as_deref(), config.clusters[0].name.as_str()), (Some("on"), "no"));
    let user = config.auth_infos[0].auth_info.clone().unwrap();
    assert_eq!(user.token.unwrap().expose_secret(), "true");
    assert!(user.exec.unwrap().provide_cluster_info && config.auth_infos[0].name == "y");
}

#[test]
fn a_value_of_the_wrong_type_is_named_and_not_shown() {
    let directory = tempfile::tempdir().unwrap();
    for (text, expected) in [
        (
            "users: [{name: a}, {name: u, user: {token: 4711}}]",
            "users[1].user.token: a number instead of a string: put it in quotes",
        ),
        ("current-context: true", "current-context: a boolean instead of a string: put it in quotes"),
        ("users: [{name: u, user: 4711}]", "users[0].user: a number instead of struct AuthInfo"),
        ("users: [{name: u, user: s4711}]", "users[0].user: a string instead of struct AuthInfo"),
        ("users: {4711: s}", "users: a map instead of a sequence"),
        ("clusters: [{name: c}, {cluster: {server: s4711}}]", "clusters[1]: missing field `name`"),
        ("4711", "a number instead of struct Kubeconfig"),
        (
            "users: [{name: u, user: {exec: {interactiveMode: s4711}}}]",
            "users[0].user.exec.interactiveMode: a string instead of one of `Never`, `IfAvailable`, `Always`",
        ),
    ] {
        let error = read(&write(directory.path(), &[("config", text.as_bytes())])).unwrap_err().to_string();
        assert_eq!(error, format!("is not YAML of a kubeconfig: {expected}"), "{text}");
    }
}

#[test]
fn the_file_of_a_list_that_cannot_be_used_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let list = write(directory.path(), &[("a", b""), ("b", b"users: [")]);
    let error = read(&list).unwrap_err().to_string();
    let file = directory.path().join("b");
    assert!(error.starts_with(&format!("{}: is not YAML of a kubeconfig: line 1 ", file.display())), "{error}");
    assert!(matches!(read(Path::new(":")), Err(KubeconfigError::NoPath)));
    let kinds = write(directory.path(), &[("a", b"kind: Config"), ("b", b"kind: Other")]);
    assert!(matches!(read(&kinds), Err(KubeconfigError::Content(_))));
}
