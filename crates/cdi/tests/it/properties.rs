//! Properties of all inputs: round trips, and that no input causes a panic.

use drakkar_cdi::{
    CdiVersion, Class, DeviceName, MetadataDevice, QualifiedName, Spec, Vendor, validate, validate_strict,
};
use drakkar_metadata::name::DriverName;
use proptest::prelude::*;

use crate::generate::valid_spec;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Texts that are valid names or nearly so.
fn nearly_a_name() -> impl Strategy<Value = String> {
    prop_oneof!["[A-Za-z0-9_.:/=-]{0,12}", "[a-z]{1,3}/[a-z]{1,3}=[a-z0-9]{1,3}", any::<String>()]
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn any_valid_spec_is_valid_and_round_trips(spec in valid_spec()) {
        validate_strict(&spec).unwrap();
        let json = spec.to_json();
        let again = Spec::parse(&json).unwrap();
        prop_assert_eq!(&again, &spec);
        prop_assert_eq!(again.to_json(), json);
    }

    #[test]
    fn any_lower_version_is_refused_and_any_higher_accepted(spec in valid_spec()) {
        let minimum = spec.minimum_version();
        for version in CdiVersion::KNOWN {
            let declared = Spec { cdi_version: version.to_string(), ..spec.clone() };
            prop_assert_eq!(validate(&declared).is_ok(), version >= minimum);
        }
    }

    #[test]
    fn a_mutated_spec_is_parsed_or_refused(
        spec in valid_spec(),
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>(), 0_u8..3), 1..5),
    ) {
        let mut json = spec.to_json();
        for (place, byte, what) in changes {
            let place = place.index(json.len());
            match what {
                0 => json[place] = byte,
                1 => json.insert(place, byte),
                _ => json.truncate(place.max(1)),
            }
        }
        if let Ok(spec) = Spec::parse(&json) {
            let again = Spec::parse(&spec.to_json()).unwrap();
            prop_assert_eq!(validate_strict(&again).is_ok(), validate_strict(&spec).is_ok());
        }
    }

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in any::<Vec<u8>>()) {
        let _ = Spec::parse(&bytes);
    }

    #[test]
    fn any_text_is_a_name_or_refused(text in nearly_a_name()) {
        if let Ok(name) = text.parse::<QualifiedName>() {
            prop_assert_eq!(name.to_string(), text.as_str());
        }
        prop_assert_eq!(Vendor::new(text.as_str()).is_ok(), Class::new(text.as_str()).is_ok());
        prop_assert!(Vendor::new(text.as_str()).is_err() || DeviceName::new(text.as_str()).is_ok());
        prop_assert!(Vendor::strict(text.as_str()).is_err() || Vendor::new(text.as_str()).is_ok());
        let _ = text.parse::<CdiVersion>();
        prop_assert!(MetadataDevice::from_file_name(&text).is_none_or(|device| device.file_name() == text));
    }

    #[test]
    fn any_file_name_is_parsed_back_into_its_names(
        driver in "[a-zA-Z]([a-zA-Z0-9-]{0,8}[a-zA-Z0-9])?(\\.[a-z0-9]{1,5}){0,3}",
        uid in "[a-zA-Z0-9]([a-zA-Z0-9_.:-]{0,40}[a-zA-Z0-9])?",
        request in "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?",
    ) {
        let device = MetadataDevice::new(driver.parse().unwrap(), uid.parse().unwrap(), request.parse().unwrap()).unwrap();
        let name = device.file_name();
        prop_assert!(!name.contains('/') && !name.starts_with('.'));
        let back = MetadataDevice::from_file_name(name).unwrap();
        prop_assert_eq!(back.driver().as_str(), driver.as_str());
        prop_assert_eq!(back.claim_uid().as_str(), uid.as_str());
        prop_assert_eq!(back.request().as_str(), request.as_str());
        prop_assert_eq!(&back, &device);
        prop_assert_eq!(&device.id().to_string().parse::<QualifiedName>().unwrap(), device.id());

        let spec = device.spec("/host/metadata.json", ["/a/x", "/b/x"]).unwrap();
        prop_assert_eq!(device.spec_json("/host/metadata.json", &["/a/x", "/b/x"]).unwrap(), spec.to_json());
        let file_name = MetadataDevice::file_name_of(device.driver(), device.claim_uid(), device.request()).unwrap();
        prop_assert_eq!(file_name, device.file_name());
        prop_assert_eq!(spec.cdi_version.as_str(), if uid.starts_with(|c: char| c.is_ascii_digit()) { "0.5.0" } else { "0.3.0" });
        prop_assert!(validate(&spec).is_ok());
        prop_assert_eq!(validate_strict(&spec).is_ok(), driver == driver.to_lowercase());
    }

    #[test]
    fn a_driver_is_a_vendor_unless_it_starts_with_a_digit(driver in "[a-zA-Z0-9]([a-zA-Z0-9-]{0,8}[a-zA-Z0-9])?(\\.[a-z0-9]{1,5}){0,3}") {
        let name: DriverName = driver.parse().unwrap();
        prop_assert_eq!(Vendor::try_from(&name).is_ok(), !driver.starts_with(|c: char| c.is_ascii_digit()));
    }
}
