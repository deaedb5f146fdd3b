//! Names: what each kind accepts, and its errors.

use drakkar_cdi::{Class, DeviceName, NameProblem, QualifiedName, Vendor};
use drakkar_metadata::name::DriverName;
use rstest::rstest;

/// Checks whether a text can be a vendor or class, and a device name.
#[rstest]
#[case::letter("a", true, true)]
#[case::upper_case("A", true, true)]
#[case::digit("0", false, true)]
#[case::digit_first("0a", false, true)]
#[case::digit_last("a0", true, true)]
#[case::domain("gpu.example.com", true, true)]
#[case::all_inner("a_-.b", true, true)]
#[case::colon("a:b", false, true)]
#[case::pci("0000:03:00.0", false, true)]
#[case::empty("", false, false)]
#[case::underscore_first("_a", false, false)]
#[case::dash_first("-a", false, false)]
#[case::dot_first(".a", false, false)]
#[case::colon_first(":a", false, false)]
#[case::underscore_last("a_", false, false)]
#[case::dash_last("a-", false, false)]
#[case::dot_last("a.", false, false)]
#[case::colon_last("a:", false, false)]
#[case::slash("a/b", false, false)]
#[case::equals("a=b", false, false)]
#[case::space("a b", false, false)]
#[case::newline_last("a\n", false, false)]
#[case::umlaut("äb", false, false)]
#[case::umlaut_inside("aäb", false, false)]
#[case::umlaut_last("bä", false, false)]
#[case::other_digit("a٣", false, false)]
#[case::dots("a..b", true, true)]
#[case::parent("..", false, false)]
fn names_follow_the_patterns(#[case] text: &str, #[case] qualifier: bool, #[case] device: bool) {
    assert_eq!(Vendor::new(text).is_ok(), qualifier);
    assert_eq!(Class::new(text).is_ok(), qualifier);
    assert_eq!(DeviceName::new(text).is_ok(), device);
    assert_eq!(DeviceName::strict(text).is_ok(), device);
    if !qualifier {
        assert!(Vendor::strict(text).is_err());
        assert!(Class::strict(text).is_err());
    }
}

#[rstest]
#[case("", "CDI vendor \"\": must not be empty")]
#[case("-a", "CDI vendor \"-a\": must start with a letter")]
#[case("a-", "CDI vendor \"a-\": must end with a letter or digit")]
#[case("a/b", "CDI vendor \"a/b\": must not have '/': only letters, digits and '-', '_', '.'")]
fn the_error_of_an_invalid_vendor_has_a_remedy(#[case] text: &str, #[case] message: &str) {
    assert_eq!(Vendor::new(text).unwrap_err().to_string(), message);
}

#[rstest]
#[case("", "CDI device name \"\": must not be empty")]
#[case("-a", "CDI device name \"-a\": must start with a letter or digit")]
#[case("a=b", "CDI device name \"a=b\": must not have '=': only letters, digits and '-', '_', '.', ':'")]
fn the_error_of_an_invalid_device_name_has_a_remedy(#[case] text: &str, #[case] message: &str) {
    assert_eq!(DeviceName::new(text).unwrap_err().to_string(), message);
}

/// G35: Kubernetes accepts such a driver, but no container could start.
#[test]
fn a_driver_name_that_starts_with_a_digit_is_no_vendor() {
    let driver: DriverName = "3d.example.com".parse().unwrap();
    let error = Vendor::try_from(&driver).unwrap_err();
    assert_eq!(
        (error.kind(), error.value(), error.problem()),
        ("CDI vendor", "3d.example.com", NameProblem::FirstDigit)
    );
    let message = error.to_string();
    assert!(message.starts_with("CDI vendor \"3d.example.com\": must start with a letter: "), "{message}");
    assert!(message.ends_with("choose a name that starts with a letter"), "{message}");
    assert_eq!(Vendor::try_from(&"d3.example.com".parse::<DriverName>().unwrap()).unwrap().as_str(), "d3.example.com");
}

#[rstest]
#[case::plain("gpu.example.com", None)]
#[case::upper_case("GPU.example.com", Some(NameProblem::Subdomain))]
#[case::underscore("gpu_x.example.com", Some(NameProblem::Subdomain))]
#[case::dots("gpu..com", Some(NameProblem::Subdomain))]
#[case::dash_at_a_dot("gpu-.com", Some(NameProblem::Subdomain))]
#[case::digit("0.example.com", Some(NameProblem::FirstDigit))]
#[case::longest(&"a".repeat(253), None)]
#[case::too_long(&"a".repeat(254), Some(NameProblem::TooLong { limit: 253, length: 254 }))]
fn a_strict_vendor_is_a_subdomain(#[case] text: &str, #[case] problem: Option<NameProblem>) {
    assert_eq!(Vendor::strict(text).err().map(|error| error.problem()), problem);
}

#[rstest]
#[case::plain("gpu", None)]
#[case::upper_case("Gpu_2.x", None)]
#[case::longest(&"a".repeat(63), None)]
#[case::too_long(&"a".repeat(64), Some(NameProblem::TooLong { limit: 63, length: 64 }))]
fn a_strict_class_is_short(#[case] text: &str, #[case] problem: Option<NameProblem>) {
    assert_eq!(Class::strict(text).err().map(|error| error.problem()), problem);
    assert!(Class::new(text).is_ok());
}

#[rstest]
#[case("vendor.com/class=dev", "vendor.com", "class", "dev")]
#[case("a/b=c", "a", "b", "c")]
#[case("vendor1.com/class.subclass=0", "vendor1.com", "class.subclass", "0")]
#[case("yet_another-vendor2.com/c-lass_2=dev_1:2.3", "yet_another-vendor2.com", "c-lass_2", "dev_1:2.3")]
fn a_qualified_name_has_three_parts(
    #[case] text: &str,
    #[case] vendor: &str,
    #[case] class: &str,
    #[case] device: &str,
) {
    let name: QualifiedName = text.parse().unwrap();
    assert_eq!((name.vendor.as_str(), name.class.as_str(), name.device.as_str()), (vendor, class, device));
    assert_eq!(name.to_string(), text);
    assert_eq!(name.kind(), format!("{vendor}/{class}"));
}

#[rstest]
#[case("", "CDI device \"\": must have the form vendor/class=device")]
#[case("gpu0", "CDI device \"gpu0\": must have the form vendor/class=device")]
#[case("/dev/gpu=0", "CDI device \"/dev/gpu=0\": must have the form vendor/class=device")]
#[case("vendor.com=0", "CDI device \"vendor.com=0\": must have the form vendor/class=device")]
#[case("vendor.com/=0", "CDI device \"vendor.com/=0\": must have the form vendor/class=device")]
#[case("vendor.com/gpu", "CDI device \"vendor.com/gpu\": must have the form vendor/class=device")]
#[case("vendor.com=x/gpu", "CDI device \"vendor.com=x/gpu\": must have the form vendor/class=device")]
#[case("vendor.com/gpu=", "CDI device name \"\": must not be empty")]
#[case("_vendor.com/gpu=0", "CDI vendor \"_vendor.com\": must start with a letter")]
#[case("vendor.com/gpu_=0", "CDI class \"gpu_\": must end with a letter or digit")]
#[case("v/a/b=0", "CDI class \"a/b\": must not have '/': only letters, digits and '-', '_', '.'")]
#[case("v/a=0=1", "CDI device name \"0=1\": must not have '=': only letters, digits and '-', '_', '.', ':'")]
fn another_text_is_not_a_qualified_name(#[case] text: &str, #[case] message: &str) {
    assert_eq!(text.parse::<QualifiedName>().unwrap_err().to_string(), message);
}

#[test]
fn a_long_name_is_truncated_in_messages() {
    let message = Vendor::new("-".repeat(5000)).unwrap_err().to_string();
    assert!(message.len() < 200 && message.contains("(5000 bytes)"), "{message}");
}
