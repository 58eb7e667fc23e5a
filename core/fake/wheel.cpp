#include "shadowgraph/capture/fake.h"

namespace shadowgraph {

long DeviceProfile::cudnn_of_wheel() { return SHADOWGRAPH_CUDNN_VERSION; }

}  // namespace shadowgraph
