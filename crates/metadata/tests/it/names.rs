//! Names: what each kind accepts, and its errors.

use std::fmt::Display;
use std::str::FromStr;

use drakkar_metadata::name::{
    ClaimName, ClaimUid, DeviceName, DriverName, NameError, NameProblem, Namespace, PodClaimName, PoolName, RequestName,
};
use rstest::rstest;

fn accepts<N: FromStr<Err = NameError> + Display>(text: &str) -> bool {
    match text.parse::<N>() {
        Ok(name) => {
            assert_eq!(name.to_string(), text);
            true
        }
        Err(error) => {
            assert_eq!(error.value(), text);
            assert!(error.to_string().starts_with(error.kind()), "{error}");
            false
        }
    }
}

/// Returns which kinds of name a text can be: label, subdomain, driver, pool, UID.
fn kinds(text: &str) -> [bool; 5] {
    let label = accepts::<RequestName>(text);
    assert_eq!(label, accepts::<DeviceName>(text));
    assert_eq!(label, accepts::<Namespace>(text));
    assert_eq!(label, accepts::<PodClaimName>(text));
    [
        label,
        accepts::<ClaimName>(text),
        accepts::<DriverName>(text),
        accepts::<PoolName>(text),
        accepts::<ClaimUid>(text),
    ]
}

const NONE: [bool; 5] = [false; 5];
const ALL: [bool; 5] = [true; 5];

#[rstest]
#[case::one_letter("a", ALL)]
#[case::one_digit("0", ALL)]
#[case::dashes("a--b", ALL)]
#[case::dots("a.b-c.d", [false, true, true, true, true])]
#[case::upper_case("GPU.example.com", [false, false, true, false, true])]
#[case::slash("a/b", [false, false, false, true, false])]
#[case::slash_behind("a/", NONE)]
#[case::slash_before("/a", NONE)]
#[case::two_slashes("a//b", NONE)]
#[case::parent("..", NONE)]
#[case::here(".", NONE)]
#[case::way_up("../../etc/passwd", NONE)]
#[case::way_up_inside("a/../b", NONE)]
#[case::dots_in_a_row("a..b", [false, false, false, false, true])]
#[case::dot_before(".a", NONE)]
#[case::dot_behind("a.", NONE)]
#[case::dash_before("-a", NONE)]
#[case::dash_behind("a-", NONE)]
#[case::dash_beside_a_dot("a-.b", [false, false, false, false, true])]
#[case::underscore("a_b", [false, false, false, false, true])]
#[case::colon("a:b", [false, false, false, false, true])]
#[case::empty("", NONE)]
#[case::nul("a\0b", NONE)]
#[case::nul_behind("a\0", NONE)]
#[case::newline_behind("a\n", NONE)]
#[case::space("a b", NONE)]
#[case::beyond_ascii("ä", NONE)]
#[case::digits_beyond_ascii("٣", NONE)]
#[case::backslash("a\\b", NONE)]
#[case::percent("%2e%2e", NONE)]
fn a_text_is_a_name_of_these_kinds(#[case] text: &str, #[case] expected: [bool; 5]) {
    assert_eq!(kinds(text), expected, "label, subdomain, driver, pool, UID: {text:?}");
}

#[rstest]
#[case(63, ALL)]
#[case(64, [false, true, false, true, true])]
#[case(128, [false, true, false, true, true])]
#[case(129, [false, true, false, true, false])]
#[case(253, [false, true, false, true, false])]
#[case(254, NONE)]
#[case(300, NONE)]
fn a_name_has_a_maximum_length(#[case] length: usize, #[case] expected: [bool; 5]) {
    assert_eq!(kinds(&"a".repeat(length)), expected);
}

#[test]
fn a_claims_uid_is_what_the_api_server_makes() {
    assert!(accepts::<ClaimUid>("0d6a3c0e-5c5e-4d53-9d39-0f2f6a1f6a11"));
}

#[rstest]
#[case("", NameProblem::Empty)]
#[case("A", NameProblem::Label)]
fn an_error_has_the_rule_that_is_broken(#[case] text: &str, #[case] problem: NameProblem) {
    assert_eq!(RequestName::new(text).unwrap_err().problem(), problem);
}

#[test]
fn an_error_names_the_kind_the_value_and_the_rule() {
    let too_long = DriverName::new("x".repeat(300)).unwrap_err();
    assert_eq!(too_long.problem(), NameProblem::TooLong { limit: 63, length: 300 });
    let text = too_long.to_string();
    assert!(
        text.starts_with("driver name \"xxx") && text.ends_with("must be no more than 63 bytes, has 300"),
        "{text}"
    );
    assert!(text.len() < 200, "{text}");
    assert_eq!(PoolName::new("a/b/C/D").unwrap_err().problem(), NameProblem::PoolPart { part: 2 });
    let hostile = ClaimName::new("a\u{1b}[2Jb\n").unwrap_err().to_string();
    assert!(!hostile.contains(['\u{1b}', '\n']), "{hostile:?}");
}

#[test]
fn a_name_converts_and_compares_as_text() {
    let name = DriverName::try_from("gpu.example.com").unwrap();
    assert!(name == "gpu.example.com" && name == *"gpu.example.com" && name.as_ref() == "gpu.example.com");
    assert_eq!(format!("{name:>16}"), " gpu.example.com");
    assert_eq!(String::from(name.clone()), "gpu.example.com");
    assert_eq!(DriverName::try_from("gpu.example.com".to_owned()), Ok(name));
}
