"""Nobody gets in: certificates, tokens and roles, on real servers, with certificates that the tests make."""
