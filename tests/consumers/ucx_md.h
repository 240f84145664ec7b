// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
/* UCX's memory domain of an RDMA device. A failure ends the program. */
#ifndef TESTS_UCX_MD_H
#define TESTS_UCX_MD_H

#include <uct/api/uct.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

inline void check_ucx(ucs_status_t status, const char *call)
{
	if (status == UCS_OK)
		return;
	std::fprintf(stderr, "%s: %s\n", call, ucs_status_string(status));
	std::exit(1);
}

/* The domain stays open until the process ends. */
inline uct_md_h open_ucx_md(const std::string &device)
{
	uct_component_h *components = nullptr;
	uct_md_config_t *config = nullptr;
	uct_md_h md = nullptr;
	unsigned int count = 0;

	check_ucx(uct_query_components(&components, &count), "uct_query_components");
	for (unsigned int i = 0; i < count && !md; i++) {
		uct_component_attr_t component{};
		component.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME;
		check_ucx(uct_component_query(components[i], &component), "uct_component_query");
		if (std::string_view(component.name) != "ib")
			continue;
		check_ucx(uct_md_config_read(components[i], nullptr, nullptr, &config),
			  "uct_md_config_read");
		check_ucx(uct_md_open(components[i], device.c_str(), config, &md), "uct_md_open");
	}
	check_ucx(md ? UCS_OK : UCS_ERR_NO_DEVICE, "uct_query_components");
	return md;
}

#endif
