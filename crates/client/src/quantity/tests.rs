//! Values and canonical strings of quantities. `e2e/interop` compares them with Go.

#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use rstest::rstest;

use super::*;

fn quantity(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[rstest]
#[case("0", "0")]
#[case("1", "1")]
#[case("+1", "+1")]
#[case("-1.5", "-1500m")]
#[case("1024Mi", "1Gi")]
#[case("40Gi", "40Gi")]
#[case("1500Mi", "1500Mi")]
#[case("512", "512")]
#[case("1000", "1k")]
#[case("00080", "00080")]
#[case("0.5", "500m")]
#[case(".5Gi", "512Mi")]
#[case("1.5Gi", "1536Mi")]
#[case("0.1Ki", "102400m")]
#[case("0.0001Ki", "102400u")]
#[case("1e3", "1e3")]
#[case("12E2", "1200")]
#[case("2e-3", "2e-3")]
#[case("1E", "1E")]
#[case("100E", "100E")]
#[case("1000E", "1e21")]
#[case("100m", "100m")]
#[case("-2k", "-2k")]
#[case("0.0000000001", "1n")]
#[case("-0.0000000011", "-2n")]
#[case("1e-1000000", "1e-9")]
#[case("15Ei", "9223372036854775807")]
#[case("-15Ei", "-9223372036854775807")]
#[case("99999999999999999999999", "99999999999999999999999")]
#[case("9223372036854775808", "9223372036854775808")]
#[case("1e1000000000", "10e999999999")]
#[case("1e4294967296", "1e4294967296")]
#[case("+", "0")]
#[case(".", "0")]
#[case("Ti", "0")]
fn the_canonical_string_is_that_of_the_api_server(#[case] text: &str, #[case] canonical: &str) {
    assert_eq!(quantity(text).to_string(), canonical);
}

#[rstest]
#[case("", ParseQuantityError::Format)]
#[case("1 Gi", ParseQuantityError::Format)]
#[case("1.2.3", ParseQuantityError::Format)]
#[case("--1", ParseQuantityError::Suffix)]
#[case("1GB", ParseQuantityError::Format)]
#[case("10gi", ParseQuantityError::Format)]
#[case("one", ParseQuantityError::Format)]
#[case("٣", ParseQuantityError::Format)]
#[case("1e", ParseQuantityError::Suffix)]
#[case("1e+", ParseQuantityError::Suffix)]
#[case("1mm", ParseQuantityError::Suffix)]
#[case("1e9223372036854775808", ParseQuantityError::Suffix)]
#[case("Ei", ParseQuantityError::Number)]
#[case(".e-10", ParseQuantityError::Number)]
fn other_strings_are_refused(#[case] text: &str, #[case] error: ParseQuantityError) {
    assert_eq!(text.parse::<Quantity>().unwrap_err(), error, "{text}");
}

#[test]
fn numbers_are_exact_however_large() {
    assert!(quantity("100E") < quantity("200E"));
    assert!(quantity("100000000000000000000000000000000000001") > quantity("100000000000000000000000000000000000000"));
    assert!(quantity("1e1000000000") > quantity("9e999999999"));
    assert!(quantity("-1e30") < quantity("-1"));
    let huge = format!("1{}", "0".repeat(20_000));
    assert!(quantity(&format!("{huge}.00000000001")) > quantity(&huge), "rounded up");
    let nines = "9".repeat(20_000);
    assert_eq!(&quantity(&nines) + &quantity("1"), quantity(&huge));
    assert_eq!(&quantity(&nines) - &quantity("9e19999"), quantity(&nines[1..]));
    assert_ne!(quantity("100E").exact().to_string(), quantity("200E").exact().to_string());
    assert_eq!(quantity("1Gi").exact().to_string(), quantity("1048576Ki").exact().to_string());
}

#[test]
fn sums_have_the_format_of_the_first_that_is_not_zero() {
    let sum = |one: &str, other: &str| (&quantity(one) + &quantity(other)).to_string();
    let difference = |one: &str, other: &str| (&quantity(one) - &quantity(other)).to_string();
    assert_eq!(sum("1Gi", "512Mi"), "1536Mi");
    assert_eq!(sum("0", "1Gi"), "1Gi");
    assert_eq!(sum("1500m", "1Ki"), "1025500m");
    assert_eq!(sum("8Ei", "1"), "8Ei", "only parsing has a limit");
    assert_eq!(difference("1Gi", "512Mi"), "512Mi");
    assert_eq!(difference("1", "1"), "0");
    assert_eq!(difference("1", "1500m"), "-500m");
    assert_eq!(sum("1e100000000", "1"), "10e99999999", "too far apart");
}

#[test]
fn integers_thousandths_and_steps() {
    assert_eq!(quantity("1600m").scaled(0), Some(2), "rounded up");
    assert_eq!(quantity("-1600m").scaled(0), Some(-2), "away from zero");
    assert_eq!(quantity("1600m").scaled(-3), Some(1600));
    assert_eq!(quantity("1e30").scaled(-9), None);
    assert_eq!((quantity("1Ki").to_i64(), quantity("1m").to_i64(), quantity("10E").to_i64()), (Some(1024), None, None));
    assert!((quantity("1500m").to_f64() - 1.5).abs() < 1e-12);
    assert!(quantity("1500m").is_multiple_of(-3) && !quantity("1500u").is_multiple_of(-3));
    let step = |at_least: &str| quantity("1Gi").step_up_to(&quantity(at_least), &quantity("512Mi")).to_string();
    assert_eq!((step("1100Mi").as_str(), step("2Gi").as_str(), step("1").as_str()), ("1536Mi", "2Gi", "1Gi"));
    assert_eq!(quantity("1").step_up_to(&quantity("5"), &quantity("0")), quantity("5"));
}

/// Generates strings of quantities: signs, zeros, points, suffixes and exponents.
fn strings() -> impl Strategy<Value = String> {
    "[-+]?(0{0,2}[0-9]{1,25}(\\.[0-9]{0,12})?|\\.[0-9]{1,12})(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][-+]?[0-9]{1,2})?"
}

proptest! {
    #[test]
    fn the_canonical_string_means_the_same_and_is_canonical(text in strings()) {
        let read = quantity(&text);
        let canonical = read.to_string();
        prop_assert_eq!(&quantity(&canonical), &read, "{} became {}", text, canonical);
        prop_assert_eq!(quantity(&canonical).to_string(), canonical);
    }

    #[test]
    fn order_and_sums_are_those_of_numbers(one in -(1i64 << 60)..1 << 60, other in -(1i64 << 60)..1 << 60) {
        let [a, b] = [one, other].map(|value| quantity(&format!("{value}n")));
        prop_assert_eq!(a.cmp(&b), one.cmp(&other));
        prop_assert_eq!((&a + &b).scaled(-9), Some(i128::from(one) + i128::from(other)));
        prop_assert_eq!((&a - &b).scaled(-9), Some(i128::from(one) - i128::from(other)));
        prop_assert_eq!(&(&a - &b) + &b, a);
    }

    #[test]
    fn forms_of_one_number_are_equal(value in 0i64..1 << 40) {
        let plain = quantity(&value.to_string());
        prop_assert_eq!(&quantity(&format!("{value}000m")), &plain);
        prop_assert_eq!(&quantity(&format!("{value}.000")), &plain);
        prop_assert_eq!(quantity(&format!("{value}Ki")).to_i64(), Some(value * 1024));
    }

    #[test]
    fn no_string_panics(text in "[-+]?[0-9.]{0,40}[a-zA-Z]{0,2}[-+]?[0-9]{0,20}|\\PC*") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            let _ = (quantity.to_string(), quantity.to_f64(), &quantity + &quantity, quantity.scaled(0));
        }
    }
}
