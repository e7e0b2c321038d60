// Builds the body and the id of a notification (docs/notify.md). Pure functions.
#pragma once

#include <string>

#include "model/records.h"
#include "store/notice_store.h"

namespace mycojobs {

// Returns the body of a notice as JSON: type (job.ended, flow.ended), timestamp, data. The data is taken from the
// record. If the job or flow has ended again or has been resumed since, the data is restricted to the fields of the
// notice.
std::string make_notice_body(Id context, const Notice&, const Fields& record);
// Returns an id that is the same for each delivery attempt, for example "7/job:12:2001@1732312312123456".
std::string make_notice_id(Id context, const Notice&);

}  // namespace mycojobs
