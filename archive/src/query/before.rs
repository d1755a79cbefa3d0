//! `happened_before(a, b)` of two stamps: true, false, or null where the clocks cannot tell.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::functions::core::expr_fn::get_field;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, cast, lit, when,
};

/// The function. It is replaced by what it means before a plan leaves this program: a cluster need not know it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct HappenedBefore {
    signature: Signature,
}

/// The function `happened_before`.
#[must_use]
pub fn happened_before() -> ScalarUDF {
    ScalarUDF::from(HappenedBefore { signature: Signature::any(2, Volatility::Immutable) })
}

impl ScalarUDFImpl for HappenedBefore {
    fn name(&self) -> &str {
        "happened_before"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        for argument in arguments {
            let DataType::Struct(fields) = argument else {
                return plan_err!(
                    "happened_before compares two stamps, such as a.stamp and b.stamp; {argument} is none"
                );
            };
            if let Some(missing) = super::table::STAMP.iter().find(|name| fields.find(name).is_none()) {
                return plan_err!("happened_before compares two stamps; one has no field {missing}");
            }
        }
        Ok(DataType::Boolean)
    }

    fn simplify(&self, arguments: Vec<Expr>, _: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let [one, other] =
            <[Expr; 2]>::try_from(arguments).map_err(|_| datafusion::common::plan_datafusion_err!("two stamps"))?;
        Ok(ExprSimplifyResult::Simplified(meaning(&one, &other)?))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        exec_err!("happened_before is replaced when a query is optimized, which was switched off")
    }
}

/// On one machine since one boot there is one clock, and in one CPU's ring one order; else only what the clocks' errors
/// leave no doubt of.
fn meaning(one: &Expr, other: &Expr) -> Result<Expr> {
    let of = |stamp: &Expr, name: &str| get_field(stamp.clone(), name);
    let number = |stamp: &Expr, name: &str| cast(of(stamp, name), DataType::Int64);
    let same = |name: &str| of(one, name).eq(of(other, name));
    let before = |name: &str| of(one, name).lt(of(other, name));
    let unknown = || lit(ScalarValue::Boolean(None));
    let earliest = |stamp: &Expr| number(stamp, "tai") - of(stamp, "tai_error");
    let latest = |stamp: &Expr| number(stamp, "tai") + of(stamp, "tai_error");
    let here = when(same("mono").is_not_true(), before("mono"))
        .when(same("trace").and(same("cpu_id")), before("row"))
        .otherwise(unknown())?;
    let apart = when(latest(one).lt(earliest(other)), lit(true))
        .when(latest(other).lt(earliest(one)), lit(false))
        .otherwise(unknown())?;
    when(same("machine").and(same("boot")), here).otherwise(apart)
}
