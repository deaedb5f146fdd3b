//! Rules about `resourceClaims`, which no feature gate turns off.

use std::collections::HashSet;

use super::name::{label_problems, subdomain_problems};
use super::{CauseType, Report};
use crate::vmi::ResourceClaimRef;

pub(super) fn validate(claims: &[ResourceClaimRef], report: &mut Report) {
    let mut names = HashSet::with_capacity(claims.len());
    for (index, claim) in claims.iter().enumerate() {
        name(index, &claim.name, &mut names, report);
        source(index, claim, report);
    }
}

fn name<'a>(index: usize, name: &'a str, names: &mut HashSet<&'a str>, report: &mut Report) {
    let field = format_args!("resourceClaims[{index}].name");
    if name.is_empty() {
        report.add(CauseType::Required, field, format!("{} is a required field", report.field(field)));
    } else if !names.insert(name) {
        report.add(CauseType::Duplicate, field, format!("resourceClaims has the name {name:?} more than once"));
    } else {
        let problems = label_problems(name);
        if !problems.is_empty() {
            let message = format!("{} is not a DNS label: {}", report.field(field), problems.join(", "));
            report.add(CauseType::Invalid, field, message);
        }
    }
}

/// Exactly one source, with a valid name. Both rules are checked, whatever the other one says.
fn source(index: usize, claim: &ResourceClaimRef, report: &mut Report) {
    let entry = format_args!("resourceClaims[{index}]");
    match (&claim.resource_claim_name, &claim.resource_claim_template_name) {
        (Some(_), Some(_)) => report.add(
            CauseType::Invalid,
            entry,
            "at most one of resourceClaimName or resourceClaimTemplateName may be specified",
        ),
        (None, None) => report.add(
            CauseType::Invalid,
            entry,
            "one of resourceClaimName or resourceClaimTemplateName must be specified",
        ),
        _ => {}
    }
    let sources = [
        ("resourceClaimName", &claim.resource_claim_name),
        ("resourceClaimTemplateName", &claim.resource_claim_template_name),
    ];
    for (key, name) in sources {
        for problem in name.as_deref().map(subdomain_problems).unwrap_or_default() {
            report.add(CauseType::Invalid, format_args!("{entry}.{key}"), problem);
        }
    }
}
