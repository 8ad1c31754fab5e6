#include "convert/plan.h"

namespace hetero::convert {

Result<Plan> plan_to_gguf(const model::Model& model) {
    return fail(Errc::bad_input, "{}: a folder cannot be written as a GGUF yet", model.path);
}
Result<Plan> plan_to_folder(const model::Model& model) {
    return fail(Errc::bad_input, "{}: a GGUF cannot be written as a folder yet", model.path);
}

}  // namespace hetero::convert
