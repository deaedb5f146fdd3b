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
    let cluster = |index: usize| config.clusters[index].value.certificate_authority.clone().unwrap();
    let in_home = |path: &str| root.join("home").join(path).to_str().unwrap().to_owned();
    assert_eq!((cluster(0), cluster(1)), (in_home("ca.crt"), "/etc/ca.crt".to_owned()));
    let user = config.users[0].value.clone();
    let paths = [user.client_certificate, user.client_key, user.token_file, user.exec.unwrap().command];
    assert_eq!(paths.map(Option::unwrap), ["pki/tls.crt", "../tls.key", "token", "./plugin"].map(in_home));
    let user = config.users[1].value.clone();
    assert_eq!((user.token_file, user.exec.unwrap().command.unwrap()), (None, "plugin".to_owned()));
}

#[test]
fn the_first_file_or_document_that_sets_a_value_wins() {
    let directory = tempfile::tempdir().unwrap();
    let first = format!("{CONTEXT}---\n# Nothing.\n---\n{CLUSTER}");
    let second = "
current-context: y
clusters: [{name: c, cluster: {server: 'http://second:1'}}, {name: d, cluster: {}}]
users: [{name: u, user: {token: secret}}]
";
    let list = write(directory.path(), &[("a", first.as_bytes()), ("b", second.as_bytes())]);
    assert_eq!(read(&list).unwrap().clusters.len(), 2);
    let config = load(&list).unwrap();
    assert_eq!(config.server, "http://first:1");
    assert_eq!(config.user.token.unwrap().expose_secret(), "secret");
}

/// As `kubectl config set-cluster` writes a new file, and a list names one that is not there yet.
#[test]
fn files_that_are_missing_and_texts_that_are_empty_set_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let first = format!("{CLUSTER}current-context: ''\n");
    let second = "
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
clusters: [{name: c, cluster: {server: 'http://second:1'}}]
users: [{name: u, user: {username: '', password: '', token: '', client-certificate: '', client-key-data: '', tokenFile: ''}}]
";
    write(directory.path(), &[("a", first.as_bytes()), ("b", second.as_bytes())]);
    let files = [PathBuf::from("/nonexistent/config"), directory.path().join("a"), directory.path().join("b")];
    let config = load(&PathBuf::from(env::join_paths(files).unwrap())).unwrap();
    assert_eq!(config.server, "http://first:1");
    let user = config.user;
    assert!(user.username.is_none() && user.token.is_none() && user.token_file.is_none());
    assert!(user.client_certificate.is_none() && user.client_key_data.is_none());
}

#[test]
fn the_server_has_a_scheme_and_no_password() {
    let directory = tempfile::tempdir().unwrap();
    for (cluster, user, url, name_and_password) in [
        ("server: '10.0.0.1:6443'", "", "http://10.0.0.1:6443", None),
        ("server: '10.0.0.1:6443/k8s', insecure-skip-tls-verify: y", "", "https://10.0.0.1:6443/k8s", None),
        ("server: 'api.test', certificate-authority: ca.crt", "", "https://api.test", None),
        ("server: 'api.test'", "client-certificate: tls.crt", "https://api.test", None),
        ("server: 'api.test'", "token: t", "https://api.test", None),
        ("server: 'api.test'", "tokenFile: token", "https://api.test", None),
        ("server: 'api.test'", "exec: {command: plugin}", "https://api.test", None),
        ("server: 'api.test'", "auth-provider: {name: oidc}", "https://api.test", None),
        ("server: 'api.test'", "username: v, password: w", "https://api.test", Some(("v", "w"))),
        ("server: 'u:p@api.test'", "", "https://api.test", Some(("u", "p"))),
        ("server: 'http://api.test'", "token: t", "http://api.test", None),
        ("server: 'https://u%40x:p:q@api.test/k8s'", "", "https://api.test/k8s", Some(("u@x", "p:q"))),
        ("server: 'https://u:p@api.test'", "token: t", "https://api.test", None),
        ("server: 'https://u@[fd00::1]:6443'", "username: v, password: w", "https://[fd00::1]:6443", Some(("v", "w"))),
    ] {
        let text =
            format!("{CONTEXT}clusters: [{{name: c, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]");
        let config = load(&write(directory.path(), &[("config", text.as_bytes())])).unwrap();
        assert_eq!(config.server, url);
        let user = config.user;
        let found = user.username.zip(user.password.map(|password| password.expose_secret().to_owned()));
        assert_eq!(
            found,
            name_and_password.map(|(name, password)| (name.to_owned(), password.to_owned())),
            "{cluster}"
        );
    }
}

#[test]
fn certificates_in_the_file_win_over_those_of_another_one() {
    let directory = tempfile::tempdir().unwrap();
    let read = |cluster: &str| {
        let text = format!("{CONTEXT}clusters: [{{name: c, cluster: {{server: 'https://x', {cluster}}}}}]");
        load(&write(directory.path(), &[("config", text.as_bytes())]))
    };
    let pem = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let data = STANDARD.encode(format!("# Two.\n{pem}{pem}"));
    // As `base64` writes it, with lines.
    let (first, second) = data.split_at(40);
    let config =
        read(&format!("certificate-authority: ca.crt, certificate-authority-data: \"{first}\\n{second}\\n\"")).unwrap();
    assert_eq!((config.root_cert, config.root_cert_file), (Some(vec![vec![0; 3]; 2]), None));
    let config = read("certificate-authority: ca.crt, certificate-authority-data: ''").unwrap();
    assert_eq!((config.root_cert, config.root_cert_file), (None, Some(directory.path().join("ca.crt"))));
    for (data, expected) in
        [("secret", "is not base64"), ("LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCkFBQUEK", "is not PEM")]
    {
        let error = read(&format!("certificate-authority-data: {data}")).err().unwrap().to_string();
        assert_eq!(error, format!("certificate-authority-data: {expected}"));
    }
}

#[test]
fn a_server_is_verified_or_not_but_not_both() {
    let directory = tempfile::tempdir().unwrap();
    let insecure_with = |cluster: &str| {
        let text = format!("{CONTEXT}clusters: [{{name: c, cluster: {{insecure-skip-tls-verify: true, {cluster}}}}}]");
        load(&write(directory.path(), &[("config", text.as_bytes())]))
    };
    for authority in ["certificate-authority: ca.crt", "certificate-authority-data: ''"] {
        for server in ["https://api.test", "api.test", "http://api.test"] {
            let is_refused = authority == "certificate-authority: ca.crt" && server != "http://api.test";
            let error = insecure_with(&format!("server: '{server}', {authority}")).err().map(|error| error.to_string());
            assert_eq!(error.is_some(), is_refused, "{server}, {authority}: {error:?}");
            assert!(error.is_none_or(|error| error.contains("; remove insecure-skip-tls-verify, ")));
        }
    }
    let refused = insecure_with("server: 'https://api.test', certificate-authority-data: AAAA");
    assert!(matches!(refused, Err(KubeconfigError::AuthorityNotUsed)));
}

#[test]
fn a_plugin_gets_a_description_of_the_cluster_if_it_asks() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("ca.crt"), "pem").unwrap();
    let description = |cluster: &str, asks: bool| {
        let users = format!("users: [{{name: u, user: {{exec: {{command: plugin, provideClusterInfo: {asks}}}}}}}]");
        let text = format!("{CONTEXT}clusters: [{{name: c, cluster: {{server: 'https://x', {cluster}}}}}]\n{users}");
        let config = load(&write(directory.path(), &[("config", text.as_bytes())]))?;
        Ok::<_, KubeconfigError>(config.user.exec.unwrap().cluster)
    };
    let cluster = "certificate-authority: ca.crt, tls-server-name: y, extensions: [{name: other, extension: 1}, \
                   {name: client.authentication.k8s.io/exec, extension: {audience: z}}]";
    assert_eq!(description(cluster, false).unwrap(), None);
    let expected = json!({
        "server": "https://x",
        "certificate-authority-data": STANDARD.encode("pem"),
        "tls-server-name": "y",
        "config": { "audience": "z" },
    });
    assert_eq!(description(cluster, true).unwrap(), Some(expected));
    let expected = json!({ "server": "https://x", "insecure-skip-tls-verify": true });
    assert_eq!(description("insecure-skip-tls-verify: true", true).unwrap(), Some(expected));
    let error = description("certificate-authority: /nonexistent/ca.crt", true).unwrap_err().to_string();
    assert_eq!(error, "certificate-authority /nonexistent/ca.crt: No such file or directory (os error 2)");
}

#[test]
fn the_proxy_of_the_cluster_is_always_used() {
    let directory = tempfile::tempdir().unwrap();
    let text =
        format!("{CONTEXT}clusters: [{{name: c, cluster: {{server: 'http://localhost', proxy-url: 'http://proxy'}}}}]");
    let config = load(&write(directory.path(), &[("config", text.as_bytes())])).unwrap();
    assert_eq!(config.proxy_url.unwrap(), "http://proxy");
}

#[test]
fn byte_order_marks_tell_the_encoding() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!("{CONTEXT}{CLUSTER}users: [{{name: u, user: {{username: Jürgen}}}}]");
    let utf16 =
        |bytes: fn(u16) -> [u8; 2]| format!("\u{feff}{text}").encode_utf16().flat_map(bytes).collect::<Vec<_>>();
    let utf8 = format!("\u{feff}{text}").into_bytes();
    for bytes in [text.clone().into_bytes(), utf8, utf16(u16::to_le_bytes), utf16(u16::to_be_bytes)] {
        let list = write(directory.path(), &[("config", &bytes)]);
        let config = load(&list).unwrap();
        assert_eq!((config.server.port_u16(), config.user.username.as_deref()), (Some(1), Some("Jürgen")));
    }
    for bytes in [&b"\xFF\xFEa"[..], b"\xFE\xFF\xD8\x00", b"a: \xFF", b"\xEF\xBB\xBF\xFF"] {
        let list = write(directory.path(), &[("config", bytes)]);
        let error = read(&list).err().unwrap();
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
clusters: [{name: no, cluster: {insecure-skip-tls-verify: Y}}, {name: on, cluster: {insecure-skip-tls-verify: off}}]
users: [{name: y, user: {token: 'true', exec: {provideClusterInfo: 'true'}}}]
preferences: {colors: yes}
";
    let config = read(&write(directory.path(), &[("config", text.as_bytes())])).unwrap();
    assert!(config.clusters[0].value.insecure_skip_tls_verify && !config.clusters[1].value.insecure_skip_tls_verify);
    assert_eq!((config.current_context.as_deref(), config.clusters[0].name.as_str()), (Some("on"), "no"));
    let user = config.users[0].value.clone();
    assert_eq!(user.token.unwrap().expose_secret(), "true");
    assert!(user.exec.unwrap().provide_cluster_info && config.users[0].name == "y");
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
        ("users: [{name: u, user: 4711}]", "users[0].user: a number instead of a map"),
        ("users: [{name: u, user: s4711}]", "users[0].user: a string instead of a map"),
        ("users: [{name: u, user: is expected s4711}]", "users[0].user: a string instead of a map"),
        (
            "users: [{name: u, user: {exec: {env: [{name: a, value: 4711}]}}}]",
            "users[0].user.exec.env[0].value: a number instead of a string: put it in quotes",
        ),
        (
            "clusters: [{name: c, cluster: {insecure-skip-tls-verify: s4711}}]",
            "clusters[0].cluster.insecure-skip-tls-verify: a string instead of a boolean",
        ),
        (
            "users: [{name: u, user: {as-groups: [a, [4711]]}}]",
            "users[0].user.as-groups[1]: a list instead of a string",
        ),
        ("users: {4711: s}", "users: a map instead of a list"),
        ("clusters: [{name: c}, {cluster: {server: s4711}}]", "clusters[1]: missing field `name`"),
        ("4711", "a number instead of a map"),
        (
            "users: [{name: u, user: {exec: {interactiveMode: s4711}}}]",
            "users[0].user.exec.interactiveMode: a string instead of one of `Never`, `IfAvailable`, `Always`",
        ),
    ] {
        let error = read(&write(directory.path(), &[("config", text.as_bytes())])).err().unwrap().to_string();
        assert_eq!(error, format!("is not YAML of a kubeconfig: {expected}"), "{text}");
    }
}

#[test]
fn the_file_of_a_list_that_cannot_be_used_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let list = write(directory.path(), &[("a", b""), ("b", b"users: [")]);
    let error = read(&list).err().unwrap().to_string();
    let file = directory.path().join("b");
    assert!(error.starts_with(&format!("{}: is not YAML of a kubeconfig: line 1 ", file.display())), "{error}");
    assert!(matches!(read(Path::new(":")), Err(KubeconfigError::NoPath)));
    let all_missing = read(Path::new("/nonexistent/a:/nonexistent/b")).err().unwrap().to_string();
    assert_eq!(all_missing, "/nonexistent/a: No such file or directory (os error 2)");
    let kinds = write(directory.path(), &[("a", b"kind: Config"), ("b", b"kind: Other")]);
    assert!(matches!(read(&kinds), Err(KubeconfigError::Mismatch("kind"))));
}
