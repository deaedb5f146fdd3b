#![allow(clippy::unwrap_used, clippy::panic)]
//! Selectors from the KEPs and the Kubernetes documentation, and the edge cases of each type.

use k8s_openapi::api::resource::v1::Device;
use rstest::rstest;
use serde_json::json;

use crate::{CheckError, DeviceValue, ResultType, Selector, SelectorError, check};

fn device() -> DeviceValue {
    let device: Device = serde_json::from_value(json!({
        "name": "gpu-0",
        "attributes": {
            "type": {"string": "gpu"},
            "model": {"string": "LATEST-GPU-MODEL"},
            "index": {"int": 3},
            "vfio": {"bool": true},
            "driverVersion": {"version": "1.2.3"},
            "productName": {"string": "NVIDIA A100-SXM4-40GB"},
            "cudaComputeCapability": {"version": "8.0.0"},
            "links": {"strings": ["a", "b"]},
            "numbers": {"ints": [1, 2]},
            "resource.kubernetes.io/pciBusID": {"string": "0000:01:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": "pci0000:01"},
            "other.example.com/name": {"string": "of another domain"},
        },
        "capacity": {"memory": {"value": "40Gi"}, "cards.example.com/cores": {"value": "6912"}},
    }))
    .unwrap();
    DeviceValue::new("gpu.example.com", &device).unwrap()
}

fn evaluate(expression: &str) -> Result<bool, SelectorError> {
    Selector::compile(expression)?.matches(&device())
}

#[rstest]
// From the API documentation, the KEPs and drivers in the wild.
#[case("device.driver == 'gpu.example.com'", true)]
#[case("device.driver == \"other.example.com\"", false)]
#[case("device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].type == 'gpu'", true)]
#[case("device.driver == 'other' && device.attributes['other'].type == 'gpu'", false)]
#[case("device.attributes['gpu.example.com'].vfio", true)]
#[case("device.attributes['gpu.example.com'].model == 'LATEST-GPU-MODEL'", true)]
#[case("device.attributes['gpu.example.com'].index < 4", true)]
#[case("device.attributes['gpu.example.com']['index'] in [1, 2, 3]", true)]
#[case("device.attributes['resource.kubernetes.io'].pciBusID == '0000:01:00.0'", true)]
#[case("device.attributes['other.example.com'].name.startsWith('of')", true)]
#[case("device.attributes['gpu.example.com'].productName.lowerAscii().matches('^.*a100.*$')", true)]
#[case("device.attributes['gpu.example.com'].productName.contains('A100') || false", true)]
#[case("'gpu.example.com' in device.attributes", true)]
#[case("'unknown.example.com' in device.attributes", false)]
#[case("has(device.attributes['unknown.example.com'].name)", false)]
#[case("has(device.attributes['gpu.example.com'].type)", true)]
#[case("has(device.attributes['gpu.example.com'].nothing)", false)]
#[case("!has(device.attributes['gpu.example.com'].nothing) || device.attributes['gpu.example.com'].nothing", true)]
#[case("'type' in device.attributes['gpu.example.com']", true)]
#[case("'nothing' in device.attributes['gpu.example.com']", false)]
#[case("device.attributes['gpu.example.com'].?nothing.orValue(7) == 7", true)]
#[case("device.attributes['gpu.example.com'].?index.orValue(7) == 7", false)]
#[case("device.attributes[?'gpu.example.com'].?index.hasValue()", true)]
#[case("cel.bind(dra, device.attributes['gpu.example.com'], dra.vfio && dra.index == 3)", true)]
#[case("cel.bind(a, device.driver, cel.bind(b, a + 'x', b == 'gpu.example.comx' && a == device.driver))", true)]
#[case("device.attributes.exists(d, d == 'other.example.com')", true)]
#[case("device.attributes['gpu.example.com'].exists(name, name == 'vfio')", true)]
#[case("['a', 'b'].all(x, x in device.attributes['gpu.example.com'].links)", true)]
#[case("size(device.attributes) == 3 && device.capacity.size() == 2", true)]
#[case("size(device.attributes['unknown']) == 0", true)]
#[case("device.allowMultipleAllocations", false)]
// Quantities.
#[case("device.capacity['gpu.example.com'].memory.compareTo(quantity('10Gi')) >= 0", true)]
#[case("device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) == 0", true)]
#[case("device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('40Gi'))", false)]
#[case("device.capacity['gpu.example.com'].memory.isLessThan(quantity('1Ti'))", true)]
#[case("device.capacity['gpu.example.com'].memory == quantity('40960Mi')", true)]
#[case("device.capacity['cards.example.com'].cores.asInteger() == 6912", true)]
#[case("device.capacity['cards.example.com'].cores.isInteger()", true)]
#[case("quantity('500m').isInteger()", false)]
#[case("quantity('1.5').asApproximateFloat() == 1.5", true)]
#[case("quantity('1Gi').add(quantity('1Gi')).sub(1) < quantity('3Gi') || true", true)]
#[case("quantity('1Gi').add(quantity('1Gi')).compareTo(quantity('2Gi')) == 0", true)]
#[case("quantity('-1').sign() == -1", true)]
#[case("isQuantity('10Gi') && !isQuantity('10GB')", true)]
#[case("has(device.capacity['gpu.example.com'].memory)", true)]
#[case("has(device.capacity['gpu.example.com'].nothing)", false)]
// Versions.
#[case("device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('1.2.0'))", true)]
#[case("device.attributes['gpu.example.com'].driverVersion.isLessThan(semver('1.2.3'))", false)]
#[case("device.attributes['gpu.example.com'].driverVersion.compareTo(semver('1.2.3')) == 0", true)]
#[case("device.attributes['gpu.example.com'].driverVersion == semver('1.2.3+build')", true)]
#[case("device.attributes['gpu.example.com'].driverVersion.major() == 1", true)]
#[case("semver('1.2.3').minor() == 2 && semver('1.2.3').patch() == 3", true)]
#[case("semver('1.2.3-rc.1').isLessThan(semver('1.2.3'))", true)]
#[case("isSemver('v1.2') || isSemver('1.2')", false)]
#[case("isSemver('v1.2', true) && semver('v01.2', true) == semver('1.2.0')", true)]
// Lists and sets.
#[case("device.attributes['gpu.example.com'].links.includes('b')", true)]
#[case("device.attributes['gpu.example.com'].model.includes('LATEST-GPU-MODEL')", true)]
#[case("device.attributes['gpu.example.com'].numbers.exists(n, n == 2)", true)]
#[case("sets.contains(device.attributes['gpu.example.com'].links, ['b'])", true)]
#[case("sets.intersects(['x', 'a'], device.attributes['gpu.example.com'].links)", true)]
#[case("sets.equivalent(['b', 'a', 'a'], device.attributes['gpu.example.com'].links)", true)]
// Values of other types are different, not errors.
#[case("device.attributes['gpu.example.com'].index == '3'", false)]
#[case("device.attributes['gpu.example.com'].driverVersion != '1.2.3'", true)]
#[case("device.attributes['gpu.example.com'].index == 3 ? true : false", true)]
#[case("type(device.attributes['gpu.example.com'].index) == int", true)]
#[case("string(device.attributes['gpu.example.com'].index) == '3'", true)]
#[case("device.attributes['gpu.example.com'].model.split('-').size() == 3", true)]
#[case("device.attributes['gpu.example.com'].model.substring(0, 6) == 'LATEST'", true)]
#[case("device.attributes['gpu.example.com'].productName.replace(' ', '').upperAscii().endsWith('GB')", true)]
#[case("false && device.attributes['gpu.example.com'].nothing == 1", false)]
#[case("device.attributes['gpu.example.com'].nothing == 1 || true", true)]
fn evaluates_to(#[case] expression: &str, #[case] expected: bool) {
    assert_eq!(evaluate(expression), Ok(expected), "{expression}");
}

#[rstest]
#[case("device.attributes['gpu.example.com'].nothing == 'gpu'", "no such key: nothing")]
#[case("device.attributes['unknown.example.com'].name", "no such key: name")]
#[case("device.capacity['gpu.example.com'].disk.isGreaterThan(quantity('1'))", "no such key: disk")]
#[case("device.attributes['gpu.example.com'].index > 'a'", "no matching overload")]
#[case("device.attributes['gpu.example.com'].model", "the result is of type string, not bool")]
#[case("device.attributes['gpu.example.com'].index.isGreaterThan(quantity('1'))", "isGreaterThan")]
#[case("device.attributes['gpu.example.com'].driverVersion > semver('1.0.0')", "no matching overload")]
#[case("quantity('10GB').sign() == 1", "is not a quantity")]
#[case("semver('1.2') == semver('1.2.0')", "semver")]
#[case("device.attributes['gpu.example.com'].model.matches('[')", "regex")]
#[case("device.attributes['gpu.example.com'][0] == 1", "")]
#[case("device.attributes == 1", "")]
#[case("device.attributes + 1 == 2", "")]
fn fails_at_runtime(#[case] expression: &str, #[case] message: &str) {
    match evaluate(expression) {
        Err(error @ SelectorError::Runtime { .. }) => {
            let error = error.to_string();
            assert!(error.contains(message) && error.contains(expression), "{expression}: {error}");
        }
        // Comparing a map with a number is false in CEL.
        other => assert_eq!((other, message), (Ok(false), ""), "{expression}"),
    }
}

#[rstest]
#[case("device.driver ==", "Syntax error")]
#[case("devices.driver == 'x'", "undeclared reference to 'devices'")]
#[case("device.name == 'gpu-0'", "undefined field 'name'")]
#[case("device.driver.foo('x')", "undeclared reference to function 'foo'")]
#[case("device.driver", "must evaluate to bool, not string")]
#[case("device.attributes", "must evaluate to bool, not map")]
#[case("1 + 1", "must evaluate to bool")]
#[case("'true'", "must evaluate to bool, not string")]
#[case("[1].exists(x, y == 1)", "undeclared reference to 'y'")]
#[case("Device{name: 'x'}", "undeclared reference to type 'Device'")]
#[case("math.greatest(1, 2) == 2", "undeclared reference")]
fn does_not_compile(#[case] expression: &str, #[case] message: &str) {
    match evaluate(expression) {
        Err(error @ SelectorError::Compile { .. }) => {
            let error = error.to_string();
            assert!(error.contains(message) && error.contains(expression), "{expression}: {error}");
        }
        other => panic!("{expression}: {other:?}"),
    }
}

/// Functions of Kubernetes that are not implemented are compile errors.
#[rstest]
#[case("ip('10.0.0.1').family() == 4")]
#[case("cidr('10.0.0.0/8').containsIP('10.1.2.3')")]
#[case("url('https://example.com').getHost() == 'example.com'")]
#[case("device.attributes['gpu.example.com'].model.find('[0-9]+') == ''")]
#[case("['a', 'b'].isSorted()")]
#[case("device.attributes['gpu.example.com'].all(k, v, k != '')")]
#[case("duration('1s') == duration('1000ms')")]
fn unimplemented_functions_do_not_compile(#[case] expression: &str) {
    assert!(matches!(evaluate(expression), Err(SelectorError::Compile { .. })), "{expression}");
}

/// Messages as kube-apiserver 1.37 words them; more are among the recorded cases of `drakkar-apiserver`.
#[rstest]
#[case("device.name", "ERROR: <input>:1:7: undefined field 'name'\n | device.name\n | ......^")]
#[case("true\n && x", "ERROR: <input>:2:5: undeclared reference to 'x' (in container '')\n |  && x\n | ....^")]
#[case("sets == 1", "ERROR: <input>:1:1: undeclared reference to 'sets' (in container '')\n | sets == 1\n | ^")]
#[case("device.driver.size()", "must evaluate to bool, not int")]
#[case("device.attributes['a'].b + 1", "must evaluate to bool, not int")]
#[case("[device.driver]", "must evaluate to bool, not list(string)")]
#[case("[1, 'a']", "must evaluate to bool, not list(dyn)")]
fn is_refused_at_admission(#[case] expression: &str, #[case] message: &str) {
    assert_eq!(check(expression, ResultType::Bool).unwrap_err().to_string(), message, "{expression}");
}

#[rstest]
#[case("device.attributes['a.b'].c")]
#[case("cel.bind(device, {'name': 'x'}, device.name == 'x')")]
#[case("device.attributes['a.b'].all(key, value, key != value)")]
#[case("['b', 'a'].sortBy(x, x) == ['a', 'b']")]
#[case("ip('10.0.0.1').family() == 4")]
#[case("math.greatest(1, 2) == 2")]
#[case("type(device.driver) == google.protobuf.Timestamp")]
fn is_admitted(#[case] expression: &str) {
    assert_eq!(check(expression, ResultType::Bool), Ok(()), "{expression}");
}

#[test]
fn the_result_can_be_of_any_type() {
    assert_eq!(check("device.driver", ResultType::Any), Ok(()));
}

#[test]
fn the_length_is_limited() {
    let expression = |length: usize| format!("'{}' == ''", "a".repeat(length - 8));
    assert_eq!(check(&expression(10 * 1024), ResultType::Bool), Ok(()));
    assert_eq!(check(&expression(10 * 1024 + 1), ResultType::Bool), Err(CheckError::TooLong));
    let error = Selector::compile(&expression(10 * 1024 + 1)).unwrap_err().to_string();
    assert!(error.ends_with("longer than 10240 bytes"), "{error}");
}

#[test]
fn a_compile_error_names_position_and_remedy() {
    let error = Selector::compile("true &&\n device.name == 'gpu-0'").unwrap_err().to_string();
    let message = "undefined field 'name' at 2:8 (the fields of device are driver, attributes, capacity, allowMultipleAllocations)";
    assert!(error.ends_with(message), "{error}");
}

#[test]
fn a_device_with_a_broken_version_is_reported() {
    let device = serde_json::from_value(json!({"name": "gpu-0", "attributes": {"v": {"version": "1.x"}}})).unwrap();
    let error = DeviceValue::new("gpu.example.com", &device).unwrap_err().to_string();
    assert!(error.starts_with("attribute v: \"1.x\" is no version"), "{error}");
}

/// Returns loops over ten numbers, one in the other.
fn nested(macro_name: &str, depth: usize, inner: &str) -> String {
    let open: String = (0..depth).map(|index| format!("[0,1,2,3,4,5,6,7,8,9].{macro_name}(x{index}, ")).collect();
    format!("{open}{inner}{}", ")".repeat(depth))
}

const DOUBLE: &str = "cel.bind(a, a + a, ";

#[rstest]
#[case::all(nested("all", 7, "x0 >= 0"))]
#[case::all_that_fails(nested("all", 7, "x0 + 'a' == ''"))]
#[case::exists(nested("exists", 7, "x0 < 0"))]
#[case::exists_one(nested("exists_one", 7, "x0 < 0"))]
#[case::map(format!("{}.size() == 0", nested("map", 7, "x0")))]
#[case::error_discarded(format!("{} || true", nested("all", 7, "x0 >= 0")))]
#[case::error_discarded_in_a_loop(format!("[1, 2].exists(y, {} || y == 2)", nested("all", 7, "x0 >= 0")))]
#[case::long_body(nested("all", 4, &vec!["x0 + x1 + x2 + x3 >= 0"; 40].join(" && ")))]
#[case::ranges("lists.range(100000).all(x, lists.range(100000).all(y, x + y >= 0))".to_owned())]
#[case::text(format!("cel.bind(a, 'aaaaaaaaaa', {}a == ''{})", DOUBLE.repeat(60), ")".repeat(60)))]
#[case::list(format!("cel.bind(a, [1, 2], {}a == []{})", DOUBLE.repeat(60), ")".repeat(60)))]
#[case::lists_of_lists(format!("cel.bind(a, lists.range(9000), {}a == []{})", "cel.bind(a, [a, a, a, a].flatten(), ".repeat(60), ")".repeat(60)))]
#[case::distinct("cel.bind(a, lists.range(300000), a.distinct() == a)".to_owned())]
#[case::sets("cel.bind(a, lists.range(300000), sets.contains(a, a))".to_owned())]
#[case::list_in_a_loop("cel.bind(a, lists.range(9000), a.all(x, !(-1 in a)))".to_owned())]
#[case::texts("lists.range(9000).map(x, lists.range(100).map(y, device.driver).join('')).join('') == ''".to_owned())]
#[case::replaced(format!("cel.bind(a, 'aaaaaaaaaa', {}a == ''{})", "cel.bind(a, a.replace('a', a), ".repeat(60), ")".repeat(60)))]
fn an_evaluation_that_costs_too_much_is_an_error_within_seconds(#[case] expression: String) {
    let started = std::time::Instant::now();
    let error = evaluate(&expression).unwrap_err().to_string();
    assert!(error.contains("the evaluation costs more than 1000000"), "{error}");
    assert!(started.elapsed() < std::time::Duration::from_secs(60), "{:?}", started.elapsed());
}

#[rstest]
#[case::four_loops(nested("all", 4, "x0 + x1 + x2 + x3 >= 0"), true)]
#[case::early_end(nested("exists", 7, "x0 + x1 + x2 + x3 + x4 + x5 + x6 >= 0"), true)]
#[case::early_end_of_a_long_list("lists.range(500000).exists(x, x == 3)".to_owned(), true)]
#[case::map(format!("{}.size() == 10", nested("map", 4, "x0")), true)]
#[case::large_sum("lists.range(1000).map(x, x * 2).filter(x, x % 3 == 0).size() == 334".to_owned(), true)]
#[case::type_of_a_variable("[1].all(string, type(string) == int)".to_owned(), true)]
#[case::texts("lists.range(100).map(x, device.driver).join(',').contains('gpu')".to_owned(), true)]
fn an_evaluation_that_kubernetes_allows_is_allowed(#[case] expression: String, #[case] expected: bool) {
    assert_eq!(evaluate(&expression), Ok(expected));
}

#[test]
fn the_api_server_accepts_what_fails_only_at_evaluation() {
    assert_eq!(check(&nested("all", 7, "x0 >= 0"), ResultType::Bool), Ok(()));
}

#[rstest]
#[case::loops(format!("{}true{}", "cel.bind(a, 'b', ".repeat(40), ")".repeat(40)))]
#[case::sum(format!("{}1 > 0", "1+".repeat(400)))]
#[case::parentheses(format!("{}1{} > 0", "(".repeat(60), ")".repeat(60)))]
#[case::lists(format!("{}1{} != [0]", "[".repeat(60), "]".repeat(60)))]
#[case::calls(format!("'a'{} == 'a'", ".trim()".repeat(400)))]
fn a_deep_expression_is_evaluated_on_a_small_stack(#[case] expression: String) {
    assert_eq!(evaluate(&expression), Ok(true));
    assert_eq!(check(&expression, ResultType::Bool), Ok(()));
}

#[rstest]
#[case::sum(format!("{}1 > 0", "1+".repeat(5000)))]
#[case::fields(format!("has(device.attributes{})", ".a".repeat(5000)))]
#[case::calls(format!("'a'{} == 'a'", ".trim()".repeat(1400)))]
fn an_expression_that_is_too_deep_is_an_error_of_the_evaluator_only(#[case] expression: String) {
    let error = evaluate(&expression).unwrap_err().to_string();
    assert!(error.contains("levels deep; the limit is 500"), "{error}");
    assert_eq!(check(&expression, ResultType::Bool), Ok(()));
}
