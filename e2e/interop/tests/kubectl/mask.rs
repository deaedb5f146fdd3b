//! What differs between two runs of the same command: times, ages, generated names, numbers of ports.

/// Replaces what differs, and runs of spaces, whose length depends on it.
pub fn mask(output: &str) -> String {
    output.lines().map(|line| mask_line(line) + "\n").collect()
}

fn mask_line(line: &str) -> String {
    let words: Vec<String> = line.split_whitespace().map(mask_word).collect();
    if words.first().is_some_and(|word| word == "resourceVersion:")
        || words.starts_with(&["Resource".to_owned(), "Version:".to_owned()])
    {
        return "VERSION".to_owned();
    }
    // The rest of a line with a time is the time: `Start Time:  Wed, 18 Nov 2026 01:15:22 +0000`.
    match words.iter().position(|word| is_clock(word)) {
        Some(_) => words.iter().take_while(|word| !is_weekday(word)).cloned().collect::<Vec<_>>().join(" ") + " TIME",
        None => words.join(" "),
    }
}

fn mask_word(word: &str) -> String {
    let bare = word.trim_matches(|character: char| "(),\"".contains(character));
    if is_age(bare) {
        return word.replace(bare, "AGE");
    }
    if is_timestamp(bare) {
        return word.replace(bare, "TIME");
    }
    let mut word = mask_uid(word);
    for prefix in ["trainer-gpus-", "00000-gpu.example.com-worker-0-", "00000-net.example.com-worker-0-"] {
        if let Some(at) = word.find(prefix) {
            let end = at + prefix.len();
            let suffix: String = word[end..].chars().take_while(char::is_ascii_alphanumeric).collect();
            word = word.replacen(&format!("{prefix}{suffix}"), &format!("{prefix}SUFFIX"), 1);
        }
    }
    match word.find("127.0.0.1:") {
        Some(at) => {
            let end = at + "127.0.0.1:".len();
            let port: String = word[end..].chars().take_while(char::is_ascii_digit).collect();
            word.replacen(&format!("127.0.0.1:{port}"), "127.0.0.1:PORT", 1)
        }
        None => word,
    }
}

/// `5s`, `3m20s`, `2d5h`.
fn is_age(word: &str) -> bool {
    let mut digits = 0;
    let mut units = 0;
    for character in word.chars() {
        match character {
            '0'..='9' => digits += 1,
            's' | 'm' | 'h' | 'd' | 'y' if digits > 0 => {
                units += 1;
                digits = 0;
            }
            _ => return false,
        }
    }
    units > 0 && digits == 0
}

/// `2026-11-18T01:15:22Z`.
fn is_timestamp(word: &str) -> bool {
    word.len() >= 20 && word.ends_with('Z') && word.as_bytes().get(10) == Some(&b'T') && word.starts_with("20")
}

/// `01:15:22`.
fn is_clock(word: &str) -> bool {
    let parts: Vec<&str> = word.split(':').collect();
    parts.len() == 3 && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_weekday(word: &str) -> bool {
    ["Mon,", "Tue,", "Wed,", "Thu,", "Fri,", "Sat,", "Sun,"].contains(&word)
}

/// Replaces UIDs and long hexadecimal numbers.
fn mask_uid(word: &str) -> String {
    let is_part = |character: char| character.is_ascii_hexdigit() || character == '-';
    let mut masked = String::new();
    for piece in word.split_inclusive(|character| !is_part(character)) {
        let id = piece.trim_end_matches(|character| !is_part(character));
        let is_uid = id.len() == 36 && id.matches('-').count() == 4;
        let is_hash = id.len() >= 32 && !id.contains('-');
        masked += &if is_uid || is_hash { piece.replace(id, "ID") } else { piece.to_owned() };
    }
    masked
}

#[test]
fn what_differs_between_runs_is_masked() {
    assert_eq!(mask("trainer   2/2   Running   0     5m12s"), mask("trainer 2/2 Running 0 31s"));
    assert_eq!(mask("Start Time:  Wed, 18 Nov 2026 01:15:22 +0000"), "Start Time: TIME\n");
    assert_eq!(mask("uid: 0b7d5f4e-6c9f-4d7e-9a43-0fb0a1c2d3e4"), "uid: ID\n");
    assert_eq!(mask("trainer-gpus-x7k2p   allocated,reserved"), "trainer-gpus-SUFFIX allocated,reserved\n");
    assert_eq!(mask("creationTimestamp: \"2026-11-18T01:15:22Z\""), "creationTimestamp: \"TIME\"\n");
    assert_eq!(mask("running at http://127.0.0.1:40123"), "running at http://127.0.0.1:PORT\n");
    assert_eq!(mask("  Resource Version:  23"), mask("  Resource Version:  4711"));
    assert_ne!(mask("2/2"), mask("1/2"));
}
