package imdstest

import "net/http"

func (s *Server) Control() http.Handler { return http.NotFoundHandler() }
